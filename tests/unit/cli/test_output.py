"""What the commands print: nothing a terminal would obey, no broken lines, and errors of files that name the file."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.archives import archive_of
from typer.testing import CliRunner

import torchdata_ais.cli
from torchdata_ais._util.files import naming
from torchdata_ais.cli import app
from torchdata_ais.cli._output import echo
from torchdata_ais.errors import NotFoundError
from torchdata_ais.local import LocalCluster
from torchdata_ais.pipes import AISSourceLister
from torchdata_ais.testing import write_shard

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\n\x7f"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def run(*words: object) -> tuple[str, int]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.output, result.exit_code


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard whose keys, fields and names are made for a terminal; one key comes back, one member is no sample's."""
    names = [
        f"{EVIL}a.jpg",
        f"{EVIL}a.c{EVIL}ls",
        f"b{EVIL}.cls",
        f"{EVIL}a.png",
        EVIL,
        "c.cls",
        "c.cls",
        f"d{EVIL}.json",
    ]
    path = tmp_path / "evil.tar"
    path.write_bytes(archive_of([(name, b"\x1b]0;x") for name in names]))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["inspect"],
        ["inspect", "--json"],
        ["lint"],
        ["lint", "--json"],
        ["lint", "--require", f"x{EVIL}"],
        ["bench", "--workers", "0", "--seconds", "0.01"],
    ],
)
def test_names_in_a_shard_reach_no_terminal_as_commands(words: list[str], shard: Path) -> None:
    output, _ = run(words[0], shard, *words[1:])
    assert output
    assert not OBEYED.search(output), repr(output)


def test_each_sample_has_one_line_whatever_is_in_its_name(shard: Path) -> None:
    output, _ = run("inspect", shard)
    assert "\\x1b]0;owned\\x07" in output
    assert "\\n" in output
    lines = [line for line in output.splitlines() if "  @" in line]
    assert len(lines) == len(json.loads(run("inspect", shard, "--json")[0].splitlines()[0])["samples"])


@pytest.mark.parametrize(
    "words",
    [
        ["ls", f"aix{EVIL}://b"],
        ["ls", f"/x{EVIL}"],
        ["inspect", f"/none{EVIL}.tar"],
        ["lint", f"/none{EVIL}.tar"],
        ["put", f"/none{EVIL}", "ais://b/"],
        ["convert", f"/none{EVIL}", f"/none{EVIL}/%d.tar"],
        ["dsort", "ais://b/x", "--order", EVIL],
        ["etl", "init", "no-change", f"os{EVIL}:x"],
        ["ls", "ais://b", "--endpoint", f"http://h{EVIL}"],
    ],
)
def test_arguments_come_back_spelled_out(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", "http://127.0.0.1:9")
    output, code = run(*words)
    assert code in (1, 2)
    assert not OBEYED.search(output), repr(output)


def test_objects_and_messages_of_a_server_are_spelled_out(ais_local_cluster, monkeypatch) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", ais_local_cluster.endpoint)
    bucket = ais_local_cluster.client().bucket("terminal").create(exist_ok=True)
    try:
        bucket.object("a\x1b[2J\x07b").get_writer().put_content(b"x")
        for words in (
            ["ls", "ais://terminal"],
            ["ls", "ais://terminal", "--json"],
            ["lint", "ais://terminal/a"],
        ):
            output, _ = run(*words)
            assert "1b[2J" in output
            assert not OBEYED.search(output), repr(output)
    finally:
        bucket.delete(missing_ok=True)


def test_notebooks_and_reprs_show_no_control_characters_and_no_markup() -> None:
    pipe = AISSourceLister(f"/x/<script>{EVIL}")
    for text in (repr(pipe), pipe._repr_html_()):
        assert not OBEYED.search(text.replace("\n", "")), repr(text)
    assert "<script>" not in pipe._repr_html_()


def test_what_the_encoding_of_the_terminal_lacks_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    echo("größer\udcff")
    stream.flush()
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfer\\udcff\n"


def test_commands_print_through_one_place_only() -> None:
    # What `serve` prints for a shell to read is a secret on purpose.
    for path in Path(torchdata_ais.cli.__file__).parent.glob("*.py"):
        text = path.read_text()
        assert text.count("typer.echo") == (path.name in ("_output.py", "demo.py")), path
        assert not re.search(r"^\s*print\(", text, re.MULTILINE), path


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limits here")
@pytest.mark.parametrize(
    "words",
    [
        ["convert", "{shard}", "{out}/s-%d.tar"],
        ["lint", "{shard}", "--fix", "{out}/s-%d.tar"],
        ["inspect", "{picture}", "--sheet", "{out}/sheet.png"],
        ["info", "{picture}", "--html", "{out}/page.html"],
    ],
)
def test_a_file_that_cannot_grow_is_named(words: list[str], tmp_path: Path) -> None:
    from PIL import Image

    png = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(png, "png")
    shard = write_shard(tmp_path / "in.tar", {"a.txt": os.urandom(60_000).hex().encode()})
    picture = write_shard(tmp_path / "picture.tar", {"a.png": png.getvalue()})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        output, code = run(*(word.format(shard=shard, picture=picture, out=tmp_path) for word in words))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert code == 1
    assert os.strerror(errno.EFBIG) in output
    assert str(tmp_path) in output.partition("error: ")[2], output
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"in.tar", "picture.tar"}


def test_errors_that_name_a_file_or_are_none_of_files_stay_as_they_are() -> None:
    with pytest.raises(OSError, match=r"No space.*'/x'") as caught, naming("/x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == "/x"
    with pytest.raises(FileNotFoundError) as caught, naming("/x"):
        Path("/none/y").read_bytes()
    assert caught.value.filename == "/none/y"
    with pytest.raises(NotFoundError, match=r"^Gone$"), naming("/x"):
        raise NotFoundError("gone")


@pytest.mark.quick(2)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls"], ["ls", "ais://pets"]])
def test_the_command_imports_torch_and_the_sdk_only_for_what_needs_them(
    arguments: list[str], tmp_path: Path
) -> None:
    write_shard(tmp_path / "s.tar", {"a.cls": b"1"})
    program = (
        "import sys; sys.argv = ['torchdata-ais', *sys.argv[1:]]\n"
        "from torchdata_ais.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    print(sorted({'torch', 'torchdata', 'aistore.sdk'} & set(sys.modules)))"
    )
    with LocalCluster() as cluster:
        cluster.put_dir(tmp_path, "ais://pets")
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "AIS_ENDPOINT": cluster.endpoint, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1] == "[]", ran.stderr


def test_bars_show_bytes_and_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress as Bar

    from torchdata_ais.cli import _output
    from torchdata_ais.store.jobs import SizedProgress

    bars: list[Bar] = []

    def shown(*columns: Any) -> Bar:
        bars.append(Bar(*columns, disable=True))
        return bars[-1]

    def cells() -> str:
        (task,) = bars[-1].tasks
        return " ".join(str(column(task)) for column in bars[-1].columns)

    monkeypatch.setattr(_output, "_bars", shown)
    with ExitStack() as stack:
        show = _output.progress_of(stack, "convert", size=lambda: 3_000_000)
        show(2, 10, "image")
        assert re.search(r"2/10 .*3\.0 MB \d", cells()), cells()
    with _output.job_bars() as told:
        told(SizedProgress("index", 1, 4, 5_000_000))
        assert re.search(r"1/4 .*5\.0 MB \d", cells()), cells()
