"""A generated corpus through webdataset 1.0.2 and through the facade: names, formats, compression, damage.

Per case both give the same samples and the same kind of end, or the case stands in `STRICTER` with what happens here
instead, and why. A case of that list that comes out the same after all fails, too: the list stays true.
"""

from __future__ import annotations

import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
from differential_corpus import BLOCK, CASES, THREE, headers, tar
from helpers.examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_ais.webdataset as ours
from torchdata_ais.errors import AISError

theirs = pytest.importorskip("webdataset")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("files_left_open"),
]


Result = tuple[str, list[dict[str, Any]]]

_CUT = "a cut shard is no short shard, and a sample that may lack a field is not passed on"
_DAMAGED = "a header that cannot be right is an error, not the end of the shard"
_LINK = "a link is the file it stands for; one out of its sample is an error, not a field that is missing"

STRICTER: dict[str, tuple[str, str]] = {
    "gz of two members": (
        "end a.jpg,cls b.jpg,cls c.jpg,cls",
        "gzip files may be joined; all parts are read",
    ),
    "gz with a wrong checksum": ("ChecksumError", "gzip's own checksum is compared"),
    "gz without checksum and length": ("TruncatedShardError a.jpg,cls b.jpg,cls", _CUT),
    "keys that come back": (
        "NonAdjacentKeyError a.jpg b.jpg",
        "half samples are not passed on as whole ones",
    ),
    "apple double": ("end d/a.cls,jpg", "what macOS leaves beside a file is no sample, and splits none"),
    "hard link": ("end a.jpg,png", _LINK),
    "symbolic link": ("end a.jpg,png", _LINK),
    "link out of the shard": ("UnsupportedMemberError", _LINK),
    "no end": ("TruncatedShardError a.jpg,cls b.jpg,cls", _CUT + "; Safety(require_end=False) allows it"),
    "zero block in the middle": ("BadHeaderError", _DAMAGED),
    "two archives in one": ("end a.jpg,cls b.jpg,cls c.jpg,cls", "joined archives are read to the end"),
    "header 1 damaged": ("BadHeaderError", _DAMAGED),
    "header 2 damaged": ("BadHeaderError", _DAMAGED),
    "header 3 damaged": ("BadHeaderError a.jpg,cls", _DAMAGED),
    "header 4 damaged": ("BadHeaderError a.jpg,cls", _DAMAGED),
    "header 5 damaged": ("BadHeaderError a.jpg,cls b.jpg,cls", _DAMAGED),
    "cut at 2048": ("TruncatedShardError", _CUT),
    "cut at 3073": ("TruncatedShardError a.jpg,cls", _CUT),
    "cut at 3272": ("TruncatedShardError a.jpg,cls", _CUT),
    "cut at 3583": ("TruncatedShardError a.jpg,cls", _CUT),
    "cut at 5119": (
        "TruncatedShardError a.jpg,cls",
        "a sample is whole when the member after it has arrived",
    ),
    "cut at 5120": ("TruncatedShardError a.jpg,cls b.jpg,cls", _CUT),
}

STRICTER_WITH_HANDLER = {
    "gz cut": ("end", _CUT),
    "field twice": ("end b.cls", "a sample with two values for one field is given up, not guessed"),
    "field twice but for case": (
        "end b.cls",
        "a sample with two values for one field is given up, not guessed",
    ),
    "field __key__": ("end b.cls", "a sample with two values for one field is given up, not guessed"),
    "cut, then the same key": ("end a.cls z.cls", "no sample has fields of two shards"),
}
"""What differs only when errors are skipped; every case of `STRICTER` differs then, too."""


def read(library: Any, shards: list[str], **options: Any) -> Result:
    """Return how the stream ended, and its samples before that."""
    pipeline = library.DataPipeline(library.SimpleShardList(shards), library.tarfile_to_samples(**options))
    samples: list[dict[str, Any]] = []
    try:
        for sample in pipeline:
            samples.append(dict(sample))
    except (AISError, tarfile.TarError, ValueError, OSError, EOFError, lzma.LZMAError) as error:
        return type(error).__name__, samples
    return "end", samples


def written(folder: Path, shards: list[bytes]) -> list[str]:
    paths = [folder / f"s{index}.tar" for index in range(len(shards))]
    for path, data in zip(paths, shards, strict=True):
        path.write_bytes(data)
    return [str(path) for path in paths]


def same(their: Result, our: Result) -> bool:
    """Whether the samples are equal, fields in the same order, and both ended well or neither."""
    return [list(s.items()) for s in their[1]] == [list(s.items()) for s in our[1]] and (
        (their[0] == "end") == (our[0] == "end")
    )


def summary(result: Result) -> str:
    fields = [",".join(name for name in sample if not name.startswith("__")) for sample in result[1]]
    return " ".join([result[0], *(f"{s['__key__']}.{f}" for s, f in zip(result[1], fields, strict=True))])


@pytest.mark.parametrize("case", CASES)
def test_the_same_samples_or_stricter(case: str, tmp_path: Path) -> None:
    paths = written(tmp_path, CASES[case])
    their, our = read(theirs, paths), read(ours, paths)
    if case in STRICTER:
        assert summary(our) == STRICTER[case][0]
    assert same(their, our) == (case not in STRICTER), (summary(their), summary(our))


@pytest.mark.parametrize("case", CASES)
def test_a_handler_never_makes_a_sample_that_is_not_whole(case: str, tmp_path: Path) -> None:
    """With ignore_and_continue: equal, or fewer samples, and each of them one that reading without damage gives."""
    paths = written(tmp_path, CASES[case])
    their = read(theirs, paths, handler=theirs.ignore_and_continue)
    our = read(ours, paths, handler=ours.ignore_and_continue)
    assert our[0] == "end"
    if case in STRICTER_WITH_HANDLER:
        assert summary(our) == STRICTER_WITH_HANDLER[case][0]
        assert not same(their, our)
    elif case in STRICTER:
        assert summary(our).partition(" ")[2] == STRICTER[case][0].partition(" ")[2]
    elif not case.startswith("cut"):
        assert same(their, our), (summary(their), summary(our))
    whole = {f"{key}.{field}": data for key, field, data in _whole_fields()}
    for sample in our[1]:
        if case.startswith(("cut at", "header")):
            got = {f"{sample['__key__']}.{f}": d for f, d in sample.items() if not f.startswith("__")}
            assert len(got) == 2
            assert got.items() <= whole.items()


def _whole_fields() -> list[tuple[str, str, bytes]]:
    return [(*name.split("."), data) for name, data in THREE]  # type: ignore[misc]


def test_every_case_of_the_list_is_a_case() -> None:
    assert STRICTER.keys() | STRICTER_WITH_HANDLER.keys() <= CASES.keys()
    assert not STRICTER.keys() & STRICTER_WITH_HANDLER.keys()


def test_every_cut_is_an_error(tmp_path: Path) -> None:
    """webdataset passes over 1 cut in 3 of these in silence."""
    shard = tar(THREE)
    for cut in sorted({at + step for at in range(0, len(shard), BLOCK) for step in (0, 1, 200, 511)}):
        result = read(ours, written(tmp_path, [shard[:cut]]))
        if cut < len(shard) - BLOCK:  # one whole block of zeros is an end
            assert result[0] != "end", cut
        assert all(len(sample) == 4 for sample in result[1]), cut
    assert headers(shard) == [1024 * index for index in range(6)]


def test_the_same_with_functions_that_select_and_rename(tmp_path: Path) -> None:
    paths = written(tmp_path, CASES["format ustar"])
    rename, select = (lambda name: name.replace(".cls", ".txt")), (lambda name: not name.startswith("b"))
    for options in (
        {"rename_files": rename},
        {"select_files": select},
        {"rename_files": rename, "select_files": select},
    ):
        assert same(read(theirs, paths, **options), read(ours, paths, **options))


KEYS = st.sampled_from(["a", "b", "d/a", "d.x/b", "é"])
FIELDS = st.sampled_from(["jpg", "cls", "JPG", "seg.png", "txt", ""])
MEMBERS = st.lists(
    st.one_of(st.builds("{}.{}".format, KEYS, FIELDS), st.sampled_from(["README", "__m__", ".x", "d/.y"])),
    max_size=9,
)


@settings(max_examples=examples(60), deadline=None)
@given(MEMBERS)
def test_random_members_give_the_same_samples(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """Except for keys that come back: webdataset makes several samples of one, as `adjacent="split"` does here."""
    folder = tmp_path_factory.mktemp("random")
    paths = written(folder, [tar([(name, str(i).encode()) for i, name in enumerate(names)])])
    their, our = read(theirs, paths), read(ours, paths)
    if our[0] == "NonAdjacentKeyError":
        keys = [sample["__key__"] for sample in their[1]]
        assert their[0] != "end" or len(set(keys)) < len(keys)
        our = read(ours, paths, adjacent="split")
    if our[0] == "end":
        assert same(their, our)
    else:  # a field twice: here its whole sample is given up
        assert their[0] != "end"
        assert [list(s.items()) for s in our[1]] == [list(s.items()) for s in their[1]][: len(our[1])]
