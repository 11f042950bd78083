"""`convert` of pictures and sound in a bucket: the same shards, byte for byte, as of the folder they came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.command import Run
from helpers.shards import lay, picture

from torchdata_ais.errors import MissingFieldError, UsageError
from torchdata_ais.testing import write_shard
from torchdata_ais.writing import convert

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


@pytest.mark.ci
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


SOURCE = [(f"{number}.cls", b"%d" % number) for number in range(4)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a", "a/s-%d.tar"),
        ("a/s-{0..1}.tar", "./a//s-%d.tar"),
        ("linked/s-0.tar", "a/s-%d.tar"),
        ("a/s-0.tar", "links/x-%d.tar"),
        ("ais://own/s-", "ais://own/s-%d.tar"),
        ("ais://own/s-{0..1}.tar", "ais://own/s-%d.tar"),
    ],
)
def test_shards_are_not_written_over_those_that_are_read(
    run: Run, ais_client: Any, tmp_path: Path, source: str, target: str
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(2):
        write_shard(tmp_path / f"a/s-{number}.tar", SOURCE)
    (tmp_path / "linked").symlink_to("a")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/x-0.tar").symlink_to("../a/s-0.tar")
    before = (tmp_path / "a/s-0.tar").read_bytes()
    bucket = ais_client.bucket("own").create()
    try:
        for number in range(2):
            bucket.object(f"s-{number}.tar").get_writer().put_content(before)
        result = run("convert", source, target, "--maxcount", "1", "--overwrite")
        assert result.exit_code == 2
        assert "is read, and would be written over. Write to a folder" in result.stderr
        assert (tmp_path / "a/s-0.tar").read_bytes() == before
        assert bucket.object("s-0.tar").get_reader().read_all() == before
        assert len(bucket.list_all_objects()) == 2
    finally:
        bucket.delete(missing_ok=True)


@pytest.mark.parametrize(
    ("source", "target", "is_refused"),
    [
        ("a", "a/even-%d.tar", True),
        ("a/*.tar", "a/even-%d.tar", True),
        ("ais://own", "ais://own/even-%d.tar", True),
        ("ais://own/s-", "ais://own/s-even-%d.tar", True),
        ("a", "a/even/s-%d.tar", False),
        ("a/s-*.tar", "a/even-%d.tar", False),
        ("*.tar", "a/even-%d.tar", False),
        ("a/s-0.tar", "a/even-%d.tar", False),
        ("ais://own/s-", "ais://own/even-%d.tar", False),
        ("ais://own/s-0.tar", "ais://own/s-0.tar-%d.tar", False),
    ],
)
@pytest.mark.parametrize("command", ["convert", "lint"])
def test_new_shards_do_not_lie_among_those_that_are_read(
    run: Run, ais_client: Any, tmp_path: Path, command: str, source: str, target: str, is_refused: bool
) -> None:
    (tmp_path / "a").mkdir()
    for path in ("a/s-0.tar", "top.tar"):
        write_shard(tmp_path / path, SOURCE)
    bucket = ais_client.bucket("own").create()
    try:
        bucket.object("s-0.tar").get_writer().put_content((tmp_path / "top.tar").read_bytes())
        result = run(command, *([source, target] if command == "convert" else [source, "--fix", target]))
        assert result.exit_code == (2 if is_refused else 0), result.output
        assert ("each sample would be there twice. Write to a folder" in result.stderr) == is_refused
    finally:
        bucket.delete(missing_ok=True)


def test_pictures_may_have_their_shards_beside_them_and_shards_of_other_numbers_may_be_read(
    run: Run, tmp_path: Path
) -> None:
    lay(tmp_path / "photos", {"cat/a.jpg": picture(1)})
    assert run("convert", "photos", "photos/s-%d.tar").exit_code == 0
    (tmp_path / "a").mkdir()
    write_shard(tmp_path / "a/s-1.tar", SOURCE)
    done = convert("a/s-1.tar", "a/s-%03d.tar", overwrite=True)  # s-001.tar is another name
    done = convert("a/s-1.tar", "a/s-%d.tar", start_shard=2, overwrite=True)
    assert [shard.name for shard in done.shards] == ["a/s-2.tar"]
    write_shard(tmp_path / "a/s-0.tar", SOURCE)
    assert convert("a/s-0.tar", "a/s-%d.tar", start_shard=7, overwrite=True).samples == 4
    with pytest.raises(UsageError, match=r"The shard a/s-1\.tar is read"):
        convert("a/s-1.tar", "a/s-%d.tar", start_shard=1, overwrite=True)


@pytest.mark.parametrize(
    ("place", "command"),
    [("out", "rm out/s-0000{03..11}.tar"), ("ais://own", "torchdata-ais rm ais://own/s-0000{03..11}.tar")],
)
def test_older_shards_beyond_the_new_ones_are_named_with_the_command_that_removes_them(
    run: Run, ais_client: Any, tmp_path: Path, place: str, command: str
) -> None:
    source = write_shard(tmp_path / "source.tar", [(f"{number:02}.cls", b"1") for number in range(12)])
    words = ["convert", source, f"{place}/s-%06d.tar"]
    try:
        assert "older" not in run(*words, "--maxcount", "1").output
        assert "older" not in run(*words, "--maxcount", "1", "--overwrite").output
        told = run(*words, "--maxcount", "4", "--overwrite")
        assert told.exit_code == 0
        assert "warning: 9 older shards of this pattern left" in told.stderr
        assert told.stderr.splitlines()[-1] == f"next: {command}"
        told = run(*words, "--maxcount", "6", "--overwrite", "--json")
        assert json.loads(told.stdout)["stale"][:2] == [f"{place}/s-000002.tar", f"{place}/s-000003.tar"]
    finally:
        ais_client.bucket("own").delete(missing_ok=True)


def test_stale_shards_are_those_of_the_same_part_and_of_the_same_names(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(tmp_path / "photos", {f"{number}.jpg": picture(number) for number in range(4)})
    convert("photos", "out/s-%02d.tar", maxcount=1)
    (tmp_path / "out/s-9.tar").write_bytes(b"")  # s-09.tar would be of the pattern
    done = convert("photos", "out/s-%02d.tar", overwrite=True, part="1/2")
    assert done.stale == ["out/s-02.tar"]
    assert "1 older shard of out/s-%02d.tar left" in caplog.text


@pytest.mark.quick(1)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_field_that_no_sample_has_is_an_error_and_nothing_is_left(
    run: Run, ais_client: Any, tmp_path: Path, processes: int
) -> None:
    lay(tmp_path / "photos", {"cat/a.jpg": picture(1), "dog/b.jpg": picture(2)})
    for target in ("out/s-%d.tar", "ais://no-such-field/s-%d.tar"):
        told = run("convert", "photos", target, "--fields", "png cls txt", "--processes", processes)
        assert told.exit_code == 1
        assert told.stderr.startswith(
            "error: No sample has the field 'png', 'txt', which --fields names. Correct --fields\n"
        )
    assert not (tmp_path / "out").exists()
    assert "no-such-field" not in [bucket.name for bucket in ais_client.cluster().list_buckets()]
    assert run("convert", "photos", "out/s-%d.tar", "--fields", "jpg cls").exit_code == 0


def test_a_field_is_looked_for_in_all_splits_and_in_what_was_written_before_a_resume(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lay(tmp_path / "photos", {f"{number}.jpg": picture(number) for number in range(4)} | {"0.txt": "a"})
    convert("photos", "split/{split}-%d.tar", split="0.5/0.5", fields="txt jpg")

    def stop(done: int, *_: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    for fields in ("txt jpg", "jpg png"):
        options: dict[str, Any] = {"manifest": f"{fields}.json", "maxcount": 1, "fields": fields}
        target = f"{fields}/s-%d.tar"
        with pytest.raises(KeyboardInterrupt):
            convert("photos", target, progress=stop, **options)
        if "txt" in fields:
            assert convert("photos", target, resume=True, **options).samples == 4
            continue
        with pytest.raises(
            MissingFieldError, match=r"'png', which fields= names\. Correct fields=; 3 shards"
        ):
            convert("photos", target, resume=True, **options)
    convert("photos", "part/s-%d.tar", fields="txt jpg", part="2/2")
    assert "No sample" not in caplog.text
    assert "no sample has the field 'txt', which fields= names: in this part" in caplog.text


def test_lint_fix_keeps_the_names_of_the_classes(run: Run, ais_client: Any, tmp_path: Path) -> None:
    lay(tmp_path / "photos", {"cat/a.jpg": picture(1), "dog/b.jpg": picture(2)})
    assert run("convert", "photos", "shards/s-%d.tar").exit_code == 0
    try:
        for target in ("good/s-%d.tar", "ais://fixed/s-%d.tar"):
            told = run("lint", "--no-decode", "shards", "--fix", target)
            place = f"{target.rpartition('/')[0]}/classes.json"
            assert told.stdout.endswith(f"; classes noted in {place}\n")
        assert (tmp_path / "good/classes.json").read_text() == (tmp_path / "shards/classes.json").read_text()
        assert ais_client.bucket("fixed").object("classes.json").get_reader().read_all()
    finally:
        ais_client.bucket("fixed").delete(missing_ok=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/classes.json").write_text('["dog", "cat"]')
    told = run("lint", "--no-decode", "shards", "--fix", "other/s-%d.tar")
    assert told.exit_code == 2
    assert "other numbers than those of the source. Write to a folder or prefix of its own\n" in told.stderr
    assert not list((tmp_path / "other").glob("*.tar"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_lint_fix_that_fails_leaves_no_empty_folder_and_no_empty_bucket(
    run: Run, ais_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write_shard(tmp_path / "s.tar", SOURCE)
    monkeypatch.setattr("sys.argv", ["torchdata-ais", "lint", "s.tar", "--fix", "PATTERN"])

    def fails(*_: object, **__: object) -> None:
        raise error

    for place, next_line in (
        ("torchdata_ais.cli.checks.lint_shards", "next: torchdata-ais lint s.tar --fix PATTERN\n"),
        (
            "torchdata_ais.writing.ShardWriter.write",
            "next: remove the shards of {}, then torchdata-ais lint s.tar --fix PATTERN\n",
        ),
    ):
        for target in ("new/deep/s-%d.tar", "ais://lint-failed/s-%d.tar"):
            with monkeypatch.context() as patch:
                patch.setattr(place, fails)
                told = run("lint", "--no-decode", "s.tar", "--fix", target)
            assert told.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 1)
            assert (next_line.format(target) in told.stderr) == isinstance(error, KeyboardInterrupt)
    assert not (tmp_path / "new").exists()
    assert "lint-failed" not in [bucket.name for bucket in ais_client.cluster().list_buckets()]
