"""Definitions that several packages share exist once."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import torchdata_ais
from torchdata_ais import AISSourceLister, SingleNodeOnly, convert
from torchdata_ais._util.world import WorldOptions, known_ranks
from torchdata_ais.codecs import IMAGE_EXTENSIONS
from torchdata_ais.codecs.encoder import _ENCODERS, FORMATS
from torchdata_ais.codecs.handlers import FIELD_KINDS, MEDIA_KINDS
from torchdata_ais.codecs.media import AUDIO_EXTENSIONS, VIDEO_EXTENSIONS
from torchdata_ais.codecs.table import _LOADERS
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import write_shard
from torchdata_ais.urls.parsing import COMPRESSIONS, is_shard
from torchdata_ais.webdataset.autodecode import decoders
from torchdata_ais.webdataset.shardlists import expand_urls
from torchdata_ais.webdataset.utils import pytorch_worker_info
from torchdata_ais.writing.sources.files import MEDIA
from torchdata_ais.writing.sources.shards import shards_in

PACKAGE = Path(torchdata_ais.__file__).parent
SHARDS = ["a.tar", "b.tgz", *(f"c.tar.{kind}" for kind in COMPRESSIONS)]
OTHERS = ["d.tar.part", "e.tar.idx", "f.zip", "g.tar.json", "tar", "h.tart"]


def test_every_room_takes_the_same_files_of_a_folder_for_shards(tmp_path: Path) -> None:
    for name in [*SHARDS, *OTHERS]:
        write_shard(tmp_path / name, {"a.cls": b"1"})
    wanted = [str(tmp_path / name) for name in sorted(SHARDS)]
    assert list(AISSourceLister(str(tmp_path))) == wanted
    assert shards_in(str(tmp_path)) == wanted
    assert expand_urls(f"{tmp_path}/") == wanted
    assert [name for name in sorted([*SHARDS, *OTHERS]) if is_shard(name)] == sorted(SHARDS)


def test_fields_that_are_read_are_written_and_decoded_by_the_same_names() -> None:
    names = {name for kind, names in FIELD_KINDS.items() if kind not in MEDIA_KINDS for name in names}
    assert names == set(_LOADERS) == set(_ENCODERS) == set(decoders)
    media = {name for kind in MEDIA_KINDS for name in FIELD_KINDS[kind]}
    assert not media & names
    assert len(media) == sum(len(FIELD_KINDS[kind]) for kind in MEDIA_KINDS)
    assert media == IMAGE_EXTENSIONS | AUDIO_EXTENSIONS | VIDEO_EXTENSIONS == MEDIA
    assert set(FORMATS) - {"img", "image"} <= IMAGE_EXTENSIONS


def test_a_column_of_a_table_is_a_file_under_each_name_of_its_kind(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x01")
    (tmp_path / "t.csv").write_text("__key__,messagepack,cls\na,x.bin,3\n")
    convert(str(tmp_path / "t.csv"), str(tmp_path / "out-%03d.tar"))
    (sample,) = AISSourceLister(str(tmp_path / "out-000.tar")).load_tar().group_samples()
    assert sample["messagepack"] == b"\x01"
    assert sample["cls"] == b"3"


@pytest.mark.parametrize(
    ("rank", "size", "known"),
    [("1", "4", (1, 4)), ("", "4", (None, 4)), ("x", "y", (None, 1)), ("3", "", (None, 1))],
)
def test_rank_and_world_are_the_same_for_all_who_ask(
    monkeypatch: pytest.MonkeyPatch, rank: str, size: str, known: Any
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert known_ranks() == known
    assert pytorch_worker_info()[:2] == (known if known[0] is not None else (0, 1))
    if known[1] > 1:
        with pytest.raises(UsageError, match="4 ranks"):
            WorldOptions().find()
        with pytest.raises(UsageError, match="4 ranks"):
            list(SingleNodeOnly([1]))
    else:
        assert WorldOptions().find()[:2] == (0, 1)
        assert list(SingleNodeOnly([1])) == [1]


def test_nobody_else_asks_for_ranks_or_for_cuda() -> None:
    asking: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if "examples" in path.parts or "own" in path.parts:  # own/: torchdata's classes ask torch themselves
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("get_world_size", "is_initialized"):
                asking.setdefault(node.attr, set()).add(path.name)
    assert asking == {"get_world_size": {"world.py"}, "is_initialized": {"world.py", "process_end.py"}}
