"""One bucket to write to, with this package's retries and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.store.sdk import call, sdk_client
from torchdata_ais.store.sdk import make_bucket as _make
from torchdata_ais.urls import Location, parse_url

__all__ = ["Bucket", "make_bucket"]


class Bucket:
    """A bucket to write to.

    Args:
        options: The cluster.
        name: The bucket.
        provider: AIStore's name of its provider.
    """

    def __init__(self, options: StoreOptions, name: str, provider: str = "ais") -> None:
        self._place = Location("object", "", name, provider)
        self.uri = self._place.uri.rstrip("/")
        self._options = options
        self._name = name
        self._provider = provider

    def create(self) -> None:
        """Make the bucket if it is missing; buckets of other providers are there or not."""
        with sdk_client(self._options) as client:
            _make(client, self._place, self._options)

    def put(self, name: str, content: bytes | Path) -> None:
        """Store one object."""
        url = f"{self.uri}/{name}"
        if isinstance(content, bytes):
            put_object(url, content, self._options)
        else:
            with content.open("rb") as file:
                put_object(url, file, self._options)

    def delete(self) -> None:
        """Remove the bucket and all in it."""
        self._ask(lambda bucket: bucket.delete(missing_ok=True))

    def _ask(self, request: Callable[[Any], object]) -> None:
        with sdk_client(self._options) as client:
            bucket = client.bucket(self._name, self._provider)
            call(lambda: request(bucket), self._options, "bucket " + self.uri, self.uri)


def make_bucket(target: str, options: StoreOptions | None) -> None:
    """Make the bucket that `target` names, if it names one that is missing."""
    place = parse_url(target)
    if options is not None and place.kind == "object" and not place.namespace:
        Bucket(options, place.bucket, place.provider).create()
