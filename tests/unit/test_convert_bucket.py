"""`convert` of pictures and sound in a bucket: the same shards, byte for byte, as of the folder they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command
import pytest
from test_convert_layouts import lay, picture

Run = Callable[..., Any]
FILES: dict[str, bytes | str] = {
    "fish tank/b 1.png": picture(1, "PNG"),
    "fish tank/a.JPEG": picture(2),
    "bird/x.jpg": picture(3),
    "bird/x.txt": "a bird, 50% off? #1",
    "bird/x{0..3}.jpg": picture(6),
    "mölk/50%25?.jpg": picture(4),
    "mölk/notes.md": "no picture",
    ".hidden/y.jpg": picture(5),
}


@pytest.fixture
def run(ais_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("AIS_ENDPOINT", ais_cluster.endpoint)
    monkeypatch.chdir(tmp_path)
    return command.run


@pytest.fixture
def bucket(ais_client: Any, tmp_path: Path) -> Iterator[str]:
    """A bucket with the files below ``photos/``, and other things beside them."""
    lay(tmp_path / "photos", FILES)
    bucket = ais_client.bucket("cli-folder").create()
    for name, content in {
        **{f"photos/{name}": data for name, data in FILES.items()},
        "other.txt": b"x",
    }.items():
        bucket.object(name).get_writer().put_content(
            content.encode() if isinstance(content, str) else content
        )
    yield "ais://cli-folder"
    bucket.delete(missing_ok=True)


@pytest.mark.parametrize("more", [(), ("--processes", "2", "--kind", "images"), ("--shuffle", "--seed", "3")])
@pytest.mark.parametrize("end", ["/photos/", pytest.param("/photos", marks=pytest.mark.ci)])
def test_shards_are_those_of_the_folder(
    run: Run, bucket: str, end: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    here = run("convert", "photos", "here/a-%d.tar", *more)
    there = run("convert", f"{bucket}{end}", "there/a-%d.tar", *more)
    assert (here.exit_code, there.exit_code) == (0, 0), there.output
    assert there.output == here.output.replace("here/", "there/")
    for name in ("a-0.tar", "classes.json"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_an_error_names_the_object(run: Run, bucket: str, ais_client: Any, tmp_path: Path) -> None:
    ais_client.bucket("cli-folder").object("photos/bird/x.txt").get_writer().put_content(
        "ä".encode("latin-1")
    )
    failed = run("convert", f"{bucket}/photos/", "out/a-%d.tar")
    assert failed.exit_code == 1
    assert "url: ais://cli-folder/photos/bird/x.txt" in failed.stderr
    assert "iconv -f latin1" in failed.stderr
    assert not (tmp_path / "out").exists()
    skipped = run("convert", f"{bucket}/photos/", "out/a-%d.tar", "--on-error", "skip")
    assert skipped.exit_code == 0
    assert "(EncodeError): bird/x.txt is not UTF-8: byte 0 is 0xe4\n" in skipped.stderr, (
        "no way out that is taken"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{bucket}/none/"], "No object"),
        (["{bucket}/photos/", "--kind", "audio"], "no sound; its files end in jpeg, jpg, md, png, txt"),
        (["{bucket}/photos/{{bird,mölk}}/", "--kind", "images"], "A template is no folder"),
        (["http://127.0.0.1:9/photos/"], "A web server tells nobody what is in a folder"),
        (["{bucket}"], "beside folders of classes|holds shards"),
        (["photos", "photos"], "converted one by one"),
    ],
)  # fmt: skip
def test_what_is_no_such_folder_is_told(
    run: Run, bucket: str, words: list[str], says: str, ais_client: Any
) -> None:
    if words == ["{bucket}"]:
        ais_client.bucket("cli-folder").object("a.tar").get_writer().put_content(b"")
    done = run("convert", *(word.format(bucket=bucket) for word in words), "ais://cli-new/a-%d.tar")
    assert done.exit_code in (1, 2)
    assert any(part.lower() in done.stderr.lower() for part in says.split("|")), done.stderr
    assert "cli-new" not in [one.name for one in ais_client.cluster().list_buckets()]


def test_metadata_of_hugging_face_is_fetched_first(run: Run, bucket: str, ais_client: Any) -> None:
    ais_client.bucket("cli-folder").object("photos/metadata.jsonl").get_writer().put_content(b"{}")
    done = run("convert", f"{bucket}/photos/", "out/a-%d.tar")
    assert done.exit_code == 2
    assert "torchdata-ais get ais://cli-folder/photos/ FOLDER/" in done.stderr
