"""Metadata of objects in the headers of a response."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchdata_ais.store.transport.attempts import Failed
from torchdata_ais.store.transport.metadata import ObjectMetadata, length_of


def response(**headers: str) -> Any:
    return SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(("text", "length"), [("5", 5), ("5, 5", 5), ("0", 0)])
def test_a_length_is_one_number(text: str, length: int) -> None:
    assert length_of(response(Content_Length=text)) == length


@pytest.mark.parametrize("text", ["5, 6", "-1", "", "five", "5.0", "\u0665"])
def test_other_lengths_are_failures(text: str) -> None:
    with pytest.raises(Failed, match="the server sent the length"):
        length_of(response(Content_Length=text))


def test_a_body_in_chunks_has_no_length() -> None:
    assert length_of(response(Transfer_Encoding="Chunked", Content_Length="5")) is None
    assert length_of(response()) is None


def test_objects_differ_by_version_checksum_or_size() -> None:
    one = ObjectMetadata(5, "1", "aa")
    assert one.difference(ObjectMetadata()) == ""
    assert one.difference(ObjectMetadata(5, "1", "bbbb")) == "", "digests of other hashes"
    assert one.difference(ObjectMetadata(5, "2", "aa")) == "version 1 became 2"
    assert one.difference(ObjectMetadata(5, "1", "ab")) == "checksum aa became ab"
    assert one.difference(ObjectMetadata(6, None, None)) == "size 5 became 6"
