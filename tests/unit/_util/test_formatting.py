"""What users see of a sample, a pipe, a loader and its figures: in a terminal, in a notebook, and in help()."""

from __future__ import annotations

import base64
import html
import inspect
import io
import itertools
import pickle
import pydoc
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchdata_ais import (
    AISFileLoader,
    AISSourceLister,
    Sample,
    SampleIndex,
    ais_loader,
    contact_sheet,
    explain,
    stats,
)
from torchdata_ais._util.formatting import value_text
from torchdata_ais.observe.display.rows import find, text_of
from torchdata_ais.testing import write_shard


@pytest.fixture
def shard(tmp_path: Path) -> str:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), (200, 30, 30)).save(out, "JPEG")
    fields = {
        "jpg": out.getvalue(),
        "cls": b"1",
        "txt": b"a red <card>",
        "bin": bytes(100_000),
        "png": b"\x89PNG broken",
    }
    return write_shard(tmp_path / "s.tar", {f"a.{name}": data for name, data in fields.items()})


def first(shard: str, *specs: str) -> Sample:
    pipe = AISSourceLister(shard).load_tar().group_samples()
    return next(iter(pipe.decode(*specs, only=["jpg", "cls", "txt"]) if specs else pipe))


def test_a_sample_is_short_whatever_it_holds(shard: str) -> None:
    raw, decoded = first(shard), first(shard, "torchrgb8")
    for text in (repr(raw), str(raw), repr(decoded), str(decoded)):
        assert len(text) < 600, text
    assert "'bin': 100.0 kB b'\\x00\\x00\\x00\\x00'..." in repr(raw)
    assert "'jpg': Tensor uint8 3 x 200 x 300" in repr(decoded)
    assert str(decoded).splitlines()[0] == f"sample 'a', byte 0 of {shard}"
    assert "  cls  1" in str(decoded)
    assert raw == dict(raw), "it is a dict as before"


def test_a_notebook_shows_a_sample_with_place_kinds_and_a_thumbnail(shard: str) -> None:
    for sample in (first(shard), first(shard, "torchrgb8"), first(shard, "pil")):
        page = sample._repr_html_()
        assert page is not None
        assert f">sample 'a', byte 0 of {shard}</caption>" in html.unescape(page)
        assert page.count('style="text-align:left') == page.count("<td ") + 1, (
            "Jupyter's cells end at the right"
        )
        assert page.count("<img src=") == 1, "the damaged png has none"
        assert len(page) < 20_000
        assert "&lt;card&gt;" in page
        assert "<card>" not in page


def test_what_a_notebook_shows_obeys_nobody_and_keeps_its_width(tmp_path: Path) -> None:
    """Names of members may have any characters: markup, other directions, what a terminal obeys, any length."""
    key, field = "<script>alert(1)</script>\u202e\x1b[2J", "\x1b]0;x\x07<b>" + "y" * 400
    names = {f"{key}.{field}": b"1", f"{key}.txt": b"</td>", f"{key}.cls": b"2"}
    url = "http://h:1/v1/objects/b/s.tar?provider=ais"
    sample = Sample({"__key__": key, "__url__": url, field: b"1", "txt": "</td>"})
    shard = tmp_path / "s.tar"
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    index = SampleIndex.build(str(shard))
    for page in (sample._repr_html_(), index._repr_html_()):
        assert "<script" not in page
        assert "<b>y" not in page
        assert not re.search("[\x1b\x07\u202e]", page)
        assert page.count("overflow-wrap:anywhere") >= page.count("<td")
    assert len(sample._repr_html_()) < 1500, "a long name is cut"
    assert ", ais://b/s.tar<" in sample._repr_html_(), "objects have their short names"
    assert max(map(len, str(sample).splitlines()[2:])) < 60, (
        "one long name does not push all values to the right"
    )
    many = Sample({f"field{number:04d}": b"" for number in range(2000)})
    assert many._repr_html_().count("<tr>") == 51
    assert "and 1950 more fields" in many._repr_html_()


def test_the_values_of_a_mask_are_seen_in_its_thumbnail() -> None:
    """Numbers such as 0, 1 and 2 are all black to the eye."""
    values = np.repeat(np.array([[0, 1, 2]], np.uint8), 30, 0).repeat(10, 1)
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    for field, colours in (("trimap.png", 3), ("png", 1)):
        page = Sample({"__key__": "a", field: out.getvalue()})._repr_html_()
        data = re.search('base64,([^"]+)', page)
        assert data is not None
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1]))).convert("RGB")).astype(int)
        parts = [picture[:, part * 10 + 3 : part * 10 + 7].mean((0, 1)) for part in range(3)]
        apart = sum(np.abs(one - other).max() > 60 for one, other in itertools.pairwise(parts))
        assert apart == colours - 1


def test_what_a_sample_has_not_is_told_with_what_it_has(shard: str) -> None:
    sample = first(shard)
    with pytest.raises(KeyError) as caught:
        sample["image"]
    text = "the sample 'a' has no field 'image', only ['bin', 'cls', 'jpg', 'png', 'txt']"
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == text
    with pytest.raises(AttributeError, match=r'A sample is a dict: write sample\["jpg"\]'):
        sample.jpg  # noqa: B018
    assert not hasattr(sample, "shape")
    assert sample.get("image") is None
    assert "image" not in sample


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"0123456789abcdefg", "17 B b'0123'..."),
        ("x" * 99, f"'{'x' * 36}...'"),
        (torch.zeros(2, 3, dtype=torch.int64), "Tensor int64 2 x 3"),
        (np.float32(1), "float32 float32 scalar"),
        (Image.new("L", (4, 3)), "PIL image L 4 x 3"),
        ([1, 2, 3, 4, 5], "[1, 2, 3, 4, ... 5]"),
        ({"a": b"x" * 20}, "{'a': 20 B b'xxxx'...}"),
        (object(), "a object"),
    ],
)
def test_a_value_in_a_few_characters(value: object, text: str) -> None:
    assert value_text(value) == text


def test_print_shows_the_whole_chain_and_repr_the_stage(shard: str) -> None:
    pipe = AISSourceLister(shard).shuffle().load_tar().group_samples().decode().batched(2)
    stages = [line.partition("(")[0].split()[0] for line in str(pipe).splitlines()]
    assert stages == [
        "list_ais",
        "shuffle",
        "sharding_filter",
        "load_tar",
        "group_samples",
        "decode",
        "batched",
    ]
    assert repr(pipe) == "batched(2)"
    assert "Shuffler" not in repr(ais_loader(pipe))
    assert [line.split("(")[0].split()[0] for line in repr(ais_loader(pipe)).splitlines()[1:]] == stages


def test_loader_stats_and_explanation_are_tables_in_a_notebook(shard: str) -> None:
    pipe = AISSourceLister(shard).load_tar().group_samples()
    list(pipe)
    for shown in (ais_loader(pipe), stats(pipe), explain(pipe)):
        page = shown._repr_html_()
        assert page.count("<table>") == page.count("</table>") == 1
        assert re.search('<td style="text-align:left[^>]*>group_samples', page), "names begin at the left"
    assert re.search('<td style="text-align:right', stats(pipe)._repr_html_()), "and numbers end at the right"
    assert "requests: 1 GETs an epoch" in explain(pipe)._repr_html_()
    assert "1 process" in stats(pipe)._repr_html_()


def test_help_and_signature_of_a_stage_are_those_of_its_class(shard: str) -> None:
    whole = list(inspect.signature(AISFileLoader).parameters)
    for pipe in (AISSourceLister(shard), AISSourceLister(shard).shuffle()):
        assert list(inspect.signature(pipe.load_tar).parameters) == whole[1:]
        assert pipe.load_tar.__doc__ == AISFileLoader.__doc__
    text = pydoc.plain(pydoc.render_doc(AISSourceLister(shard).load_tar))
    assert text.startswith(
        "Python Library Documentation: function load_tar in module torchdata_ais.pipes.load_tar"
    )
    assert "open_shards: 'int' = 1" in text
    assert "Stream tar shards" in text


def test_a_contact_sheet_has_class_names_and_captions(shard: str) -> None:
    sample = {name: value for name, value in first(shard, "pil").items() if name != "png"}
    found = find(sample)
    assert (found.label, found.caption) == (1, "a red <card>")
    both, alone = (contact_sheet([sample], label=label) for label in (None, "cls"))
    assert both.size[1] > alone.size[1], "the caption has a line of its own"
    for classes in (["cat", "card"], {1: "card"}, {"1": "card"}, {"cat": 0, "card": 1}):
        assert text_of(1, classes) == "card"


def test_a_sample_shows_its_object_by_the_short_name() -> None:
    url = "http://h:51080/v1/objects/pets/a%20b.tar?provider=ais"
    sample = Sample({"__key__": "a", "__url__": url, "txt": b"x"})
    for shown in (repr(sample), str(sample), sample.where):
        assert "ais://pets/a b.tar" in shown
        assert "http" not in shown
    assert sample["__url__"] == url
    for other in ("/data/s.tar", "http://h/s.tar", 7):
        assert f"'__url__': {other!r}" in repr(Sample({"__url__": other}))
