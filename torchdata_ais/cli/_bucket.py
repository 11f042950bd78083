"""One bucket, written through the SDK with this package's retries and errors."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import Self

from torchdata_ais.store import StoreOptions
from torchdata_ais.store.sdk import call, sdk_client
from torchdata_ais.urls import Location

__all__ = ["OpenBucket"]


class OpenBucket:
    """A bucket to write to, as a context manager.

    Args:
        options: The cluster.
        name: The bucket.
        provider: AIStore's name of its provider.
    """

    def __init__(self, options: StoreOptions, name: str, provider: str = "ais") -> None:
        self.uri = Location("object", "", name, provider).uri.rstrip("/")
        self._options = options
        self._name = name
        self._provider = provider
        self._stack = ExitStack()
        self._bucket: Any = None

    def __enter__(self) -> Self:
        client = self._stack.enter_context(sdk_client(self._options))
        self._bucket = client.bucket(self._name, self._provider)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def create(self) -> None:
        """Make the bucket if it is missing; buckets of other providers are there or not."""
        if self._provider == "ais":
            call(lambda: self._bucket.create(exist_ok=True), self._options, "the bucket", self.uri)

    def put(self, name: str, content: bytes | Path) -> None:
        """Store one object."""
        writer = self._bucket.object(name).get_writer()
        put = writer.put_content if isinstance(content, bytes) else writer.put_file
        call(lambda: put(content), self._options, "the object", f"{self.uri}/{name}")

    def delete(self) -> None:
        """Remove the bucket and all in it."""
        call(lambda: self._bucket.delete(missing_ok=True), self._options, "the bucket", self.uri)
