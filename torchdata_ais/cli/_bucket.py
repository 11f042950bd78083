"""One bucket to write to, with this package's retries and errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchdata_ais.store import StoreOptions, put_object
from torchdata_ais.store.sdk import call, sdk_bucket, sdk_client
from torchdata_ais.store.sdk import make_bucket as _make
from torchdata_ais.urls import Location, bucket_place, parse_url


@dataclass(frozen=True)
class Bucket:
    """A bucket to write to.

    Args:
        options: The cluster.
        place: The bucket.
    """

    options: StoreOptions
    place: Location

    @property
    def uri(self) -> str:
        """Its name, as ``ais://name``."""
        return self.place.uri.rstrip("/")

    def create(self) -> None:
        """Make the bucket if it is missing; buckets of other providers are there or not."""
        with sdk_client(self.options) as client:
            _make(client, self.place, self.options)

    def put(self, name: str, content: bytes | Path) -> None:
        """Store one object."""
        url = f"{self.uri}/{name}"
        if isinstance(content, bytes):
            put_object(url, content, self.options)
        else:
            with content.open("rb") as file:
                put_object(url, file, self.options)

    def delete(self) -> None:
        """Remove the bucket and all in it."""
        with sdk_client(self.options) as client:
            bucket = sdk_bucket(client, self.place)
            call(lambda: bucket.delete(missing_ok=True), self.options, f"bucket {self.uri}", self.uri)


def make_bucket(target: str, options: StoreOptions | None) -> None:
    """Make the bucket that `target` names, if it names one that is missing."""
    place = parse_url(target)
    if options is not None and place.kind == "object" and not place.namespace:
        Bucket(options, bucket_place(place.bucket, place.provider)).create()
