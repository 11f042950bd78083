"""The commands for buckets, objects and members: ls, put, get, cat, cp, rm."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.command import Run

from torchdata_ais.cli._output import as_typed, remedy_as_typed
from torchdata_ais.cli.checks.lint import Problem
from torchdata_ais.errors import UsageError
from torchdata_ais.errors.text import Remedy, in_commands, in_programs
from torchdata_ais.local import FlipBit, LocalCluster, Status
from torchdata_ais.testing import shard_bytes

MEMBERS = {"a/1.txt": b"one", "a/1.bin": b"\xff\x00", "b.txt": b"two"}


@pytest.fixture
def pets(ais_client: Any) -> Iterator[str]:
    """A bucket with two shards, one compressed, and an object whose name looks like a member of a shard."""
    bucket = ais_client.bucket("cli-objects").create()
    for name, content in {
        "t/s-0.tar": shard_bytes(MEMBERS),
        "t/s-1.tar.gz": gzip.compress(shard_bytes(MEMBERS)),
        "odd.tar/x.txt": b"no member",
    }.items():
        bucket.object(name).get_writer().put_content(content)
    yield "ais://cli-objects"
    bucket.delete(missing_ok=True)
    ais_client.bucket("cli-copy").delete(missing_ok=True)


@pytest.mark.parametrize("shard", ["t/s-0.tar", "t/s-1.tar.gz"])
def test_members_are_listed_shown_fetched_and_copied(run: Run, pets: str, shard: str, tmp_path: Path) -> None:
    rows = json.loads(run("ls", "--json", f"{pets}/{shard}/").stdout)
    assert [(row["url"].removeprefix(f"{pets}/{shard}/"), row["size"]) for row in rows] == [
        ("a/1.txt", 3), ("a/1.bin", 2), ("b.txt", 3)
    ]  # fmt: skip
    assert run("cat", f"{pets}/{shard}/a/1.bin", f"{pets}/{shard}/b.txt").stdout_bytes == b"\xff\x00two"
    assert run("get", f"{pets}/{shard}/a/1.txt").exit_code == 0
    assert (tmp_path / "1.txt").read_bytes() == b"one"
    assert run("get", f"{pets}/{shard}/a/1.txt").stdout == "wrote 0 files, 0 B: 1.txt; 1 there already\n"
    assert run("cp", f"{pets}/{shard}/b.txt", "ais://cli-copy/").exit_code == 0
    assert run("cat", "ais://cli-copy/b.txt").stdout == "two"
    missing = run("cat", f"{pets}/{shard}/none")
    assert missing.exit_code == 1
    assert f"torchdata-ais ls {pets}/{shard}/ shows its members" in missing.stderr


def test_an_object_comes_before_a_member_of_its_name(run: Run, pets: str) -> None:
    assert run("cat", f"{pets}/odd.tar/x.txt").stdout == "no member"
    assert run("ls", f"{pets}/odd.tar/").stdout == f"       9 B  {pets}/odd.tar/x.txt\n"
    assert run("rm", f"{pets}/odd.tar/x.txt").exit_code == 0


def test_get_leaves_what_is_there_and_replaces_only_when_told(run: Run, pets: str, tmp_path: Path) -> None:
    assert run("get", f"{pets}/t/s-", "out").exit_code == 0
    (tmp_path / "out" / "s-0.tar").write_bytes(b"other")
    (tmp_path / "out" / "s-1.tar.gz").unlink()
    refused = run("get", f"{pets}/t/s-", "out")
    assert refused.exit_code == 2
    assert "There is a file out/s-0.tar already" in refused.stderr
    assert not (tmp_path / "out" / "s-1.tar.gz").exists(), "looked at before anything is fetched"
    assert run("get", "--overwrite", f"{pets}/t/s-", "out").stdout.startswith("wrote 2 files")
    assert (tmp_path / "out" / "s-0.tar").read_bytes() == shard_bytes(MEMBERS)
    (tmp_path / "out" / "s-0.tar").unlink()
    (tmp_path / "out" / "s-0.tar").mkdir()
    assert "Name another target" in run("get", "--overwrite", f"{pets}/t/s-0.tar", "out").stderr


@pytest.mark.parametrize("shard", ["t/s-0.tar", "t/s-1.tar.gz"])
@pytest.mark.parametrize("there", [b"one!", b"on", b"", b"One"])
def test_a_file_that_is_not_the_member_is_not_taken_for_it(
    run: Run, pets: str, tmp_path: Path, shard: str, there: bytes
) -> None:
    (tmp_path / "1.txt").write_bytes(there)
    refused = run("get", f"{pets}/{shard}/a/1.txt")
    assert refused.exit_code == 2
    assert "There is a file 1.txt already" in refused.stderr
    assert (tmp_path / "1.txt").read_bytes() == there
    assert run("get", "--overwrite", f"{pets}/{shard}/a/1.txt").stdout == "wrote 1 file, 3 B: 1.txt\n"
    assert (tmp_path / "1.txt").read_bytes() == b"one"


@pytest.mark.parametrize("there", [b"no member!", b"no membe", b"", b"NO member"])
def test_a_file_or_object_that_is_not_the_same_is_not_taken_for_it(
    run: Run, pets: str, tmp_path: Path, there: bytes
) -> None:
    (tmp_path / "x.txt").write_bytes(there)
    assert run("get", f"{pets}/odd.tar/x.txt").exit_code == 2
    assert run("put", "x.txt", f"{pets}/odd.tar/x.txt").exit_code == 2
    assert run("put", "x.txt", f"{pets}/other").exit_code == 0
    assert run("cp", f"{pets}/odd.tar/x.txt", f"{pets}/other").exit_code == 2
    assert (tmp_path / "x.txt").read_bytes() == there
    assert run("cat", f"{pets}/odd.tar/x.txt").stdout == "no member"
    assert run("cat", f"{pets}/other").stdout_bytes == there


def test_a_damaged_body_leaves_no_file(
    run: Run, pets: str, tmp_path: Path, ais_cluster: Any, ais_faults: Any
) -> None:
    assert isinstance(ais_cluster, LocalCluster)
    ais_faults.add(FlipBit(600), object="t/s-0.tar")
    refused = run("get", f"{pets}/t/s-0.tar", "x.tar")
    assert refused.exit_code == 1
    assert "checksum" in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../up.txt", "/x.txt", "a//b"])
def test_names_that_lead_out_of_the_folder_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from torchdata_ais.cli._objects import Found, target_names
    from torchdata_ais.errors import UsageError
    from torchdata_ais.urls import ObjectURL

    with pytest.raises(UsageError, match="no name that is safe"):
        target_names([Found(ObjectURL("http://h:1/v1/objects/b/x?provider=ais"), name)], True, "out/")


def test_put_stores_what_is_missing_and_replaces_only_when_told(run: Run, pets: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"2")
    assert run("put", "files/a", f"{pets}/f/").exit_code == 0
    assert run("put", "files", f"{pets}/f/").stdout == f"stored 1 object, 1 B, in {pets}; 1 there already\n"
    (folder / "a").write_bytes(b"3")
    (folder / "c").write_bytes(b"4")
    refused = run("put", "files", f"{pets}/f/")
    assert refused.exit_code == 2
    assert f"url: {pets}/f/a" in refused.stderr
    assert run("ls", f"{pets}/f/c").exit_code == 1, "looked at before anything is stored"
    told = json.loads(run("put", "--json", "--overwrite", "files", f"{pets}/f/").stdout)
    assert (told["stored"], told["there"], told["size"]) == (2, 1, 2)
    assert run("cat", f"{pets}/f/a").stdout == "3"


def test_cp_keeps_names_from_the_last_slash_on(run: Run, pets: str) -> None:
    assert run("cp", f"{pets}/t/s-", "ais://cli-copy/old/").exit_code == 0
    assert [line.split()[-1] for line in run("ls", "ais://cli-copy").stdout.splitlines()] == [
        "ais://cli-copy/old/s-0.tar",
        "ais://cli-copy/old/s-1.tar.gz",
    ]
    assert "; 2 there already" in run("cp", f"{pets}/t/s-{{0.tar,1.tar.gz}}", "ais://cli-copy/old/").stdout
    assert run("cp", f"{pets}/t/s-0.tar", "ais://cli-copy/old/s-1.tar.gz").exit_code == 2
    assert run("cp", "--overwrite", f"{pets}/t/s-0.tar", "ais://cli-copy/old/s-1.tar.gz").exit_code == 0


def test_cp_copies_nothing_over_what_is_to_be_copied(run: Run, pets: str, ais_client: Any) -> None:
    for name in ("a/1", "a/a/1"):
        ais_client.bucket("cli-objects").object(name).get_writer().put_content(name.encode())
    refused = run("cp", "--overwrite", f"{pets}/a/", f"{pets}/a/a/")
    assert refused.exit_code == 2
    assert f"{pets}/a/1 would be copied over {pets}/a/a/1, which is to be copied" in refused.stderr
    assert run("cat", f"{pets}/a/a/1").stdout == "a/a/1"
    assert run("cp", "--overwrite", f"{pets}/a/", f"{pets}/a/").exit_code == 0


def test_rm_of_many_wants_a_yes(run: Run, pets: str) -> None:
    refused = run("rm", "-r", f"{pets}/t/")
    assert refused.exit_code == 2
    assert "Nobody is here to ask about 2 objects" in refused.stderr
    assert len(run("ls", f"{pets}/t/").stdout.splitlines()) == 2
    assert run("rm", "-r", f"{pets}/t/", "--yes").exit_code == 0
    assert run("ls", f"{pets}/t/").exit_code == 1
    assert run("rm", "-ry", pets).stdout == f"removed 1 object, 9 B, and 1 bucket: {pets}\n"
    assert pets not in run("ls").stdout


@pytest.mark.parametrize("how", ["ais", "http"])
def test_an_object_that_went_meanwhile_is_not_reported_as_removed(
    run: Run, pets: str, ais_cluster: Any, ais_faults: Any, how: str
) -> None:
    url = f"{pets}/t/s-0.tar"
    if how == "http":
        url = f"{ais_cluster.endpoint}/v1/objects/{pets.removeprefix('ais://')}/t/s-0.tar?provider=ais"
    ais_faults.add(Status(404), verb="DELETE", object="t/s-0.tar")
    missing = run("rm", url)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "t/s-0.tar" in missing.stderr
    assert run("rm", "-ry", f"{pets}/t/").exit_code == 0  # of a prefix, all is gone then


def test_regex_chooses_members_buckets_and_objects(run: Run, pets: str) -> None:
    for shard in ("t/s-0.tar", "t/s-1.tar.gz"):
        found = run("ls", "--regex", r"a/1\.", f"{pets}/{shard}/")
        assert [line.split()[-1] for line in found.stdout.splitlines()] == [
            f"{pets}/{shard}/a/1.txt",
            f"{pets}/{shard}/a/1.bin",
        ]
        assert found.stderr == "2 members, 5 B\n"
    one = json.loads(run("ls", "--json", "--regex", "bin$", f"{pets}/t/s-0.tar/").stdout)
    assert [row["url"] for row in one] == [f"{pets}/t/s-0.tar/a/1.bin"]
    assert run("ls", "--regex", "nowhere", f"{pets}/t/s-0.tar/").stderr == "0 members, 0 B\n"
    buckets = run("ls", "--regex", "cli-obj.*s$")
    assert (buckets.stdout, buckets.stderr) == (f"{pets}\n", "1 bucket\n")
    assert run("ls", "--regex", "^nowhere$", "ais://").stderr == "0 buckets\n"
    objects = run("ls", "--regex", "gz$", pets)
    assert [line.split()[-1] for line in objects.stdout.splitlines()] == [f"{pets}/t/s-1.tar.gz"]


def test_ls_of_an_empty_bucket_is_no_error(run: Run, ais_bucket: Any) -> None:
    result = run("ls", f"ais://{ais_bucket.name}")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "0 objects, 0 B\n")
    assert f"ais://{ais_bucket.name}" in run("ls", "ais://").stdout.splitlines()
    assert run("ls", "s3://").stdout == ""
    assert run("ls", "x3://").exit_code == 2


OPTIONS = {"overwrite": "--overwrite", "resume": "--resume", "manifest": "--manifest", "only": "--only"}


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        (
            Remedy("Remove them, write elsewhere", "pass resume=True with manifest=", "overwrite=True"),
            "Remove them, write elsewhere, or pass --resume with --manifest, or --overwrite",
        ),
        (Remedy("Write it again", "; if there is none, pass safety=Safety(require_end=False)"), "Write it again"),
        (Remedy("Sort the shard (tar --sort=name)", in_programs("take such runs with group_samples(adjacent='split')")),
         "Sort the shard (tar --sort=name)"),
        (Remedy(in_programs('Use on_error="skip" to go on'), "name the fields to decode with only="),
         "Name the fields to decode with --only"),
        (Remedy(in_programs("See help(convert) for the values")), ""),
        (Remedy(in_programs("Name the field with columns={'file_name': 'jpg'}"),
                in_commands("pass --column file_name=jpg")), "Pass --column file_name=jpg"),
        (Remedy("Set AIS_AUTHN_TOKEN", in_programs("pass cluster=StoreOptions(endpoint, token)")),
         "Set AIS_AUTHN_TOKEN"),
        ("Check that the cluster is up and that cluster= or AIS_ENDPOINT is right",
         "Check that the cluster is up and that --endpoint or AIS_ENDPOINT is right"),
        ("Use columns, rows", "Use columns, rows"),
    ],
)  # fmt: skip
def test_remedies_are_what_can_be_typed(said: str, typed: str) -> None:
    assert remedy_as_typed(said, OPTIONS) == typed


def test_an_error_keeps_how_a_command_says_its_remedy() -> None:
    error = UsageError.at("it is there", todo=Remedy("pass overwrite=True", in_commands("name another")))
    for same in (error, pickle.loads(pickle.dumps(error)), error.placed({"url": "x"}), copy.deepcopy(error)):
        assert same.todo == "Pass overwrite=True"
        assert remedy_as_typed(same.todo, OPTIONS) == "Pass --overwrite, or name another"
    noted = error.noting("the log says more")
    assert noted.todo == "Pass overwrite=True; the log says more"
    assert remedy_as_typed(noted.todo, OPTIONS) == "Pass --overwrite, or name another; the log says more"
    assert str(noted) == "It is there. Pass overwrite=True; the log says more"
    (problem,) = [Problem.of(noted, "s.tar")]
    assert dataclasses.asdict(problem)["text"] == noted.sentences


def test_http_addresses_of_objects_are_said_by_their_names() -> None:
    url = "http://127.0.0.1:51080/v1/objects/pets/a%20b.tar?provider=ais"
    assert as_typed(f"reading {url}, twice", {}) == "reading ais://pets/a b.tar, twice"


@pytest.mark.parametrize("words", [["ls"], ["rm", "-ry"], ["rm"], ["get"], ["cat"]])
def test_a_template_that_reaches_too_far_is_an_error_and_nothing_is_done(
    run: Run, pets: str, tmp_path: Path, words: list[str]
) -> None:
    put_text(run, tmp_path, pets, *(f"n-{number}.txt" for number in range(3)))
    refused = run(*words, f"{pets}/n-{{0..9}}.txt")
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert f"{pets}/n-3.txt does not exist: 10 objects are named by templates" in refused.stderr
    assert "the bucket has 3 that begin with 'n-'" in refused.stderr
    assert run(*words, "ais://no-such-bucket/n-{0..9}.txt").exit_code == 1
    assert len(run("ls", f"{pets}/n-").stdout.splitlines()) == 3


def test_what_a_template_names_is_shown_with_its_size_and_removed(
    run: Run, pets: str, tmp_path: Path
) -> None:
    put_text(run, tmp_path, pets, *(f"n-{number}.txt" for number in range(3)))
    assert run("ls", f"{pets}/n-{{0..1}}.txt").stdout.splitlines() == [
        f"       7 B  {pets}/n-0.txt",
        f"       7 B  {pets}/n-1.txt",
    ]
    assert run("ls", "--regex", "1", f"{pets}/n-{{0..9}}.txt").stdout == f"       7 B  {pets}/n-1.txt\n"
    plain = run("rm", f"{pets}/n-{{0..1}}.txt")
    assert plain.exit_code == 1
    assert "--recursive removes 2 objects that the template names" in plain.stderr
    assert run("rm", "-ry", f"{pets}/n-{{0..1}}.txt").stdout == "removed 2 objects, 14 B\n"
    assert run("ls", f"{pets}/n-").stdout.split()[-1] == f"{pets}/n-2.txt"


def put_text(run: Run, tmp_path: Path, bucket: str, *names: str) -> None:
    for name in names:
        (tmp_path / "one").write_text(name)
        assert run("put", "one", f"{bucket}/{name}").exit_code == 0
    (tmp_path / "one").unlink()


@pytest.mark.parametrize("name", [b"a\tb", b"a\nb", b"a\x7f", b"\xff.txt"])
def test_files_whose_names_no_object_can_have_are_not_stored(run: Run, tmp_path: Path, name: bytes) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "0.txt").write_text("good")
    file = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    file.write_text("x")
    for words in (["files", "ais://cli-names/"], [f"files/{file.name}", "ais://cli-names/"]):
        refused = run("put", *words)
        assert refused.exit_code == 2
        assert "No object can be called" in refused.stderr
        assert f"Rename the file {f'files/{file.name}'!r}" in refused.stderr
    assert run("ls", "ais://cli-names").exit_code == 1, "no bucket was made"
    named = run("put", "files/0.txt", f"ais://cli-names/{file.name}")
    assert named.exit_code == 2
    assert "Choose another name" in named.stderr


def test_cp_makes_no_name_that_cannot_be_listed(run: Run, pets: str) -> None:
    refused = run("cp", f"{pets}/t/s-0.tar", "ais://cli-copy/a\tb")
    assert refused.exit_code == 2
    assert "No object can be called 'a\\tb': it has a control character" in refused.stderr
    assert run("ls", "ais://cli-copy").exit_code == 1, "no bucket was made"


def test_cat_takes_whole_names(run: Run, pets: str, tmp_path: Path) -> None:
    put_text(run, tmp_path, pets, "classes.json", "d/0", "d/1", "d/2", "d/3")
    for name, says in {
        "class": f"There is no object {pets}/class. Did you mean {pets}/classes.json?",
        "d": f"Did you mean {pets}/d/0, {pets}/d/1, {pets}/d/2 or 1 other?",
        "none": "no object",
    }.items():
        refused = run("cat", f"{pets}/{name}")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert says in refused.stderr
    for url in (pets, f"{pets}/d/"):
        refused = run("cat", url)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"This names no object. Name one: torchdata-ais ls {url} shows them" in refused.stderr
    assert run("cat", f"{pets}/d/{{0,1}}").stdout == "d/0d/1"


def test_inspect_of_a_missing_file_speaks_of_its_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for path, folder in {"nosuch.tar": "", "sub/nosuch.tar": "sub", "sub/no/such.tar": "sub"}.items():
        refused = run("inspect", path)
        assert refused.exit_code == 1
        assert "torchdata-ais ls" not in refused.stderr
        assert f"ls {tmp_path / folder} shows what is there" in refused.stderr
    assert "torchdata-ais ls" in run("inspect", "ais://no-such-bucket/x.tar").stderr
