"""Errors have attributes, which every process gets; their text is read only where nothing else came through."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._utils import ExceptionWrapper

from torchdata_ais import AISFileLoader, errors
from torchdata_ais.errors import AISError
from torchdata_ais.errors.text import taken_apart
from torchdata_ais.urls import no_cluster, parse_url

PACKAGE = Path(errors.__file__).parents[1]
WHAT = "The body broke off. Twice, at 'a. B'"
PLACE = {"url": "ais://b/s.tar", "offset": 512, "key": "a\n[at] {}"}


def every() -> set[type[AISError]]:
    """Return all errors of the package, also those of its subpackages."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "torchdata_ais."):
        if ".examples" not in module.name and not module.name.endswith(("__main__", "pytest_plugin")):
            importlib.import_module(module.name)
    found: set[type[AISError]] = set()
    queue: list[type[AISError]] = [AISError]
    while queue:
        kind = queue.pop()
        if kind.__module__.startswith("torchdata_ais"):
            found.add(kind)
            queue += kind.__subclasses__()
    return found


KINDS = sorted(every(), key=lambda kind: (kind.__module__, kind.__name__))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_parts_are_attributes_in_every_process(kind: type[AISError]) -> None:
    error = kind.at(WHAT, todo="begin anew. Twice", attempt=None, **PLACE)
    error.__notes__ = ["in .decode()"]  # as add_note does, which CPython 3.10 lacks
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert type(same) is kind
        assert (same.what, same.todo, same.place) == (WHAT, "Begin anew. Twice", PLACE)
        assert (same.url, same.offset, same.key, same.member) == (PLACE["url"], 512, PLACE["key"], None)
        assert str(same).startswith(
            f'{WHAT}. Begin anew. Twice\n[at] {{"url": "ais://b/s.tar", "offset": 512'
        )
        assert same.__notes__ == ["in .decode()"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_torch_rebuilds_from_text_has_its_parts_and_begins_with_the_cause(kind: type[AISError]) -> None:
    try:
        raise kind.at("the shard ends early", todo="write it again", url="ais://b/s.tar", offset=512)
    except AISError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 3")
    with pytest.raises(kind) as caught:
        wrapped.reraise()
    error = caught.value
    assert str(error).startswith("The shard ends early. Write it again\n[at] {")
    assert (error.what, error.todo) == ("The shard ends early", "Write it again")
    assert error.place == {"url": "ais://b/s.tar", "offset": 512, "in": "DataLoader worker process 3"}


@pytest.mark.parametrize(
    "data", [b"<html>" * 200, tarfile.TarInfo("a.txt").tobuf(), b""], ids=["html", "cut", "empty"]
)
def test_a_shard_that_is_not_sound_is_what_tarfile_raises_for_it(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(data)
    with pytest.raises(tarfile.ReadError) as caught:
        list(AISFileLoader([str(tmp_path / "s.tar")]))
    assert isinstance(caught.value, errors.ShardError)


def test_a_text_that_only_looks_like_an_errors_stays_text() -> None:
    for text in ("[at] {", 'x\n[at] {"a": }', "Caught X in y.\nOriginal Traceback of nothing", ""):
        assert taken_apart(text)[0] == text


def test_no_error_shows_a_secret_in_its_attributes() -> None:
    error = errors.ReadError.at(
        "GET http://me:pw@h/?sig=abc failed", todo="not http://me:pw@h", url="http://me:pw@h/x", key="k\x1b"
    )
    for value in (error.what, error.todo, *error.place.values()):
        assert "pw" not in str(value)
        assert "sig=abc" not in str(value)
    assert "\x1b" not in str(error)


def tree() -> Iterator[tuple[str, str]]:
    """Yield (error, parent) of the drawing in the module's docstring."""
    assert errors.__doc__
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ((?:[|` ]   |[|`]-- )*)([\w.]*Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            yield found[2], above[depth - 1] if depth else ""


def test_the_tree_that_is_drawn_has_every_error_below_its_parent() -> None:
    def name(kind: type) -> str:
        return ("webdataset." if ".webdataset" in kind.__module__ else "") + kind.__name__

    drawn = list(tree())
    wanted = {(name(kind), name(kind.__bases__[0]) if kind is not AISError else "") for kind in KINDS}
    assert set(drawn) == wanted
    assert len(drawn) == len(wanted)


def test_a_name_keeps_its_letters() -> None:
    for text in (
        "'cls' is no field",
        "to_tuple was given 3",
        "train-%06d.tar: gone",
        "n=3",
        "http://h is no URL",
    ):
        assert errors.UsageError.at(text).what == text


def test_any_word_that_begins_a_sentence_gets_a_capital_letter() -> None:
    for word in ("listing ais://b: gone", "zebras are no shards", "gone"):
        error = errors.UsageError.at(word, todo=word)
        assert (error.what, error.todo) == (word[0].upper() + word[1:],) * 2


def test_there_is_one_text_for_a_cluster_that_nobody_named() -> None:
    said = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"""["' ]no cluster is (named|known)["']""", line, re.IGNORECASE)
    ]
    assert {one.partition(":")[0] for one in said} == {"urls/location.py"}, said
    with pytest.raises(errors.UsageError) as caught:
        parse_url("ais://b/x").require_endpoint()
    assert caught.value.todo == no_cluster().todo
