"""Keys and fields that are no names: errors of ours, and a kind word about keys that lead out of a folder."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path
from typing import Any

import pytest

from torchdata_ais import AISFileLoader, ShardWriter, TarWriter
from torchdata_ais.errors import AISError, EncodeError, UsageError
from torchdata_ais.tar import TarBuilder


def written(sample: dict[str, Any], **options: Any) -> bytes:
    shard = io.BytesIO()
    with TarWriter(shard, **options) as writer:
        writer.write(sample)
    return shard.getvalue()


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "\ud83d/b"])
def test_half_a_character_in_a_key_is_an_error_of_ours(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"surrogates not allowed.*real characters") as caught:
        written({"__key__": key, "cls": 1})
    assert caught.value.key == key
    with pytest.raises(UsageError, match="surrogates"), ShardWriter(f"{tmp_path}/s-%d.tar") as writer:
        writer.write({"__key__": key, "cls": 1})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="cannot be the name of a file in an archive: surrogates"):
        TarBuilder().member(f"{key}.cls", b"1")


def test_half_a_character_elsewhere_is_one_too() -> None:
    with pytest.raises(UsageError, match="surrogates"):
        written({"__key__": "a", "\ud800": b"1"})
    with pytest.raises(EncodeError, match="Field 'txt' of sample 'a'"):
        written({"__key__": "a", "txt": "\ud800"})
    with pytest.raises(EncodeError, match="Field '_note' of sample 'a' is no text: surrogates"):
        written({"__key__": "a", "cls": 1, "_note": "\ud800"}, keep_meta=True)


def test_bytes_of_a_name_that_are_no_utf_8_are_written_as_they_were_read() -> None:
    key = b"caf\xe9".decode("utf-8", "surrogateescape")
    with tarfile.open(fileobj=io.BytesIO(written({"__key__": key, "cls": 1}))) as tar:
        assert tar.getnames() == [f"{key}.cls"]


@pytest.mark.parametrize("key", ["../../x", "/etc/x", "a/../x"])
def test_a_key_that_leads_out_of_a_folder_is_written_and_said_once(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "torchdata_ais"),
        ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=2) as writer,
    ):
        for number in range(5):
            writer.write({"__key__": f"{key}{number}", "cls": number})
    (record,) = caplog.records
    assert f"the key '{key}0' leads out of the folder" in record.getMessage()
    pipe = AISFileLoader(sorted(map(str, tmp_path.iterdir()))).group_samples()
    assert [sample["__key__"] for sample in pipe] == [f"{key}{number}" for number in range(5)]


def test_other_keys_are_written_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    for key in ("a", "a/b", "a..b/c", "./a", "train/x"):
        written({"__key__": key, "cls": 1})
    assert caplog.records == []


def test_every_error_is_ours() -> None:
    for sample in ({"__key__": "\ud800"}, {"__key__": "a", 5: b""}, {"__key__": 5}, {}, [], None):
        with pytest.raises(AISError):
            written(sample)  # type: ignore[arg-type]
