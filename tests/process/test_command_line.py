"""The command as people run it: a process, a shell's pipes, a terminal of 80 columns, Ctrl-C, a full disk."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchdata_ais.local import Delay, LocalCluster, Stall
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.testing import example_shards

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals and /dev/full"),
]

SCRIPT = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # off in a shell's background
from torchdata_ais.cli import main
sys.exit(main())
"""
MEASURED = """\
import sys
from torchdata_ais.cli import main
try:
    main()
finally:
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak, *sys.modules, file=sys.stderr)
"""
# A quarter more than there were when this was written.
HELP_MODULES, VERSION_MODULES, LS_MODULES = 520, 320, 570
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bin") / "torchdata-ais"
    path.write_text(f"#!{sys.executable}\n{SCRIPT}")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def env(cluster: LocalCluster, script: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "AIS_ENDPOINT": cluster.endpoint, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def shards(tmp_path: Path, cluster: LocalCluster) -> Iterator[Path]:
    """A folder with three shards that is stored as ais://pets, too."""
    folder = tmp_path / "shards"
    folder.mkdir()
    example_shards(folder)
    cluster.put_dir(folder, "ais://pets")
    yield folder
    for bucket in cluster.client().cluster().list_buckets():
        cluster.client().bucket(bucket.name).delete(missing_ok=True)


def shell(line: str, env: dict[str, str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**env, **more},
        cwd=folder,
    )


def terminal(
    words: list[str], env: dict[str, str], folder: Path, typed: bytes = b"", **more: str
) -> tuple[str, int]:
    """Run the command in a terminal of 80 columns, and return what it shows and its exit code."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed)
        settings = {**env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", **more}
        process = subprocess.Popen(
            ["torchdata-ais", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=settings, cwd=folder
        )
        os.close(theirs)
        theirs = -1
        shown = b""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    block = os.read(ours, 65536)
                except OSError:  # what a terminal says when the last process has left it
                    break
                shown += block
        try:
            return shown.decode().replace("\r\n", "\n"), process.wait(60)
        finally:
            process.kill()
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def names(cluster: LocalCluster, url: str) -> list[str]:
    options = StoreOptions(endpoint=cluster.endpoint)
    return [found.rpartition("/")[2].partition("?")[0] for found in list_objects(url, options=options)]


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--help"], HELP_MODULES),
        pytest.param(["--version"], VERSION_MODULES, marks=pytest.mark.ci),
        pytest.param(["ls", "ais://pets"], LS_MODULES, marks=pytest.mark.ci),
    ],
    ids=["--help", "--version", "ls"],
)
def test_it_starts_with_few_modules_and_100_mb(
    words: list[str], most: int, env: dict[str, str], shards: Path, tmp_path: Path
) -> None:
    """A module takes about half a millisecond; counted, as seconds are others on a busy machine."""
    measured = tmp_path / "torchdata-ais"
    measured.write_text(MEASURED)
    ran = subprocess.run(
        [sys.executable, str(measured), *words], capture_output=True, text=True, env=env, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    peak, *modules = ran.stderr.splitlines()[-1].split()
    assert int(peak) < 100_000
    assert not {"torch", "numpy", "pandas", "pyarrow", "PIL", "datasets"}.intersection(modules)
    assert len(modules) <= most


@pytest.mark.ci
def test_objects_and_members_go_the_whole_way(
    env: dict[str, str], shards: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    done = shell(
        """
        set -e
        torchdata-ais put shards ais://new/a/
        torchdata-ais put shards ais://new/a/
        torchdata-ais cp ais://new/a/shard-00 ais://copy/
        torchdata-ais cp ais://new/a/shard-001.tar/00003.txt ais://copy/x.txt
        torchdata-ais get ais://copy/shard- out/
        torchdata-ais get ais://copy/shard- out/
        torchdata-ais get ais://copy/shard-001.tar/00003.txt out/
        torchdata-ais cat ais://copy/x.txt
        echo
        torchdata-ais ls
        torchdata-ais ls -l ais://copy
        torchdata-ais ls ais://copy/shard-000.tar/
        torchdata-ais rm ais://copy/x.txt
        torchdata-ais rm -ry ais://copy/shard-00
        torchdata-ais rm --recursive --yes ais://new
        torchdata-ais ls ais://
        """,
        env,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:8] == [
        "stored 3 objects, 30.7 kB, in ais://new",
        "stored 0 objects, 0 B, in ais://new; 3 there already",
        "stored 3 objects, 30.7 kB, in ais://copy",
        "stored 1 object, 3 B, in ais://copy",
        "wrote 3 files, 30.7 kB: out",
        "wrote 0 files, 0 B: out; 3 there already",
        "wrote 1 file, 3 B: out/00003.txt",
        "xxx",
    ]
    assert lines[8:11] == ["ais://copy", "ais://new", "ais://pets"]
    assert re.fullmatch(r" {7}10240  [0-9a-f]{16}  v1  ais://copy/shard-000.tar", lines[11])
    assert [line.split()[-1] for line in lines[15:17]] == [
        f"ais://copy/shard-000.tar/00000.{end}" for end in ("cls", "txt")
    ]
    assert lines[17:] == [
        "removed 1 object, 3 B",
        "removed 3 objects, 30.7 kB",
        "removed 3 objects, 30.7 kB, and 1 bucket: ais://new",
        "ais://copy",
        "ais://pets",
    ]
    for path in shards.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "out" / "00003.txt").read_bytes() == b"xxx"


IMPOSSIBLE = [
    ("ls ais://nothing-here", 1, "does not exist"),
    ("ls --regex '(' ais://pets", 2, "--regex='(' is no regular expression"),
    (
        "cat ais://pets/shard-000.tar/none.jpg",
        1,
        "no member 'none.jpg'. torchdata-ais ls ais://pets/shard-000.tar/",
    ),
    ("get ais://pets/shard-000.tar no/such/x.tar", 1, "There is no folder no/such. Make it"),
    ("get ais://pets/shard-000.tar taken", 2, "There is a file taken already"),
    ("get ais://pets/shard- taken", 2, "3 objects cannot have one name"),
    ("put taken ais://pets/shard-000.tar", 2, "Pass --overwrite, or choose other names"),
    ("put taken --bogus ais://pets/", 2, "No such option: --bogus"),
    ("cp taken ais://pets/", 2, "torchdata-ais put stores files"),
    ("cp ais://pets/none ais://fresh/", 1, "no object"),
    ("cp ais://pets/shard-000.tar ais://pets/shard-001.tar/x.tar", 2, "A shard is not changed in place"),
    ("rm ais://pets/shard-00", 1, "--recursive removes 3 objects that begin so"),
    ("rm -r ais://pets", 2, "Pass --yes"),
    ("rm ais://pets/shard-000.tar ais://pets/none", 1, "nothing is removed"),
    ("rm ais://pets/shard-000.tar/00000.txt", 2, "A shard is not changed in place"),
    ("convert shards 'ais://fresh/%s.tar'", 2, "no pattern of shards"),
    ("convert none ais://fresh/%d.tar", 1, "none"),
    ("convert shards --shuffle ais://fresh/%d.tar", 2, "Shuffle shards with torchdata-ais dsort"),
    (
        "convert shards --root x ais://fresh/%d.tar",
        2,
        "--column and --root are for tables. Pass --kind=table",
    ),
    ("inspect taken", 1, "Not a tar archive"),
]
# Each line in a fork of a process that has the command's modules: they are imported once.
FORKS = """\
import importlib, json, os, pkgutil, shlex, sys, tempfile
import aistore.sdk, torchdata_ais.cli
from torchdata_ais.cli import main
for module in pkgutil.iter_modules(torchdata_ais.cli.__path__, "torchdata_ais.cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
ended = []
for line in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as said:
        if not (child := os.fork()):
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            sys.argv = ["torchdata-ais", *shlex.split(line)]
            sys.exit(main())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        ended.append((code, said.read()))
json.dump(ended, sys.stdout)
"""


@pytest.mark.ci
def test_what_cannot_be_done(
    env: dict[str, str], shards: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    """One message in words of the command line, the exit code that the help promises, and nothing changed."""
    (tmp_path / "taken").write_bytes(b"something else")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=json.dumps([line for line, _, _ in IMPOSSIBLE]),
        capture_output=True,
        text=True,
        timeout=120,
        env={**env, "COLUMNS": "200"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for (line, code, says), (ended, said) in zip(IMPOSSIBLE, json.loads(done.stdout), strict=True):
        assert ended == code, (line, said)
        assert says in said, line
        assert not re.search(r"Traceback|=True|\w\(\)|http://127.*/v1/", said), (line, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "taken").read_bytes() == b"something else"
    assert names(cluster, "ais://pets") == ["shard-000.tar", "shard-001.tar", "shard-002.tar"]
    assert [bucket.name for bucket in cluster.client().cluster().list_buckets()] == ["pets"]


@pytest.mark.ci
def test_pipes_that_close_and_disks_that_are_full(env: dict[str, str], shards: Path, tmp_path: Path) -> None:
    for index in range(30):
        (shards / f"{index}{'x' * 200}.txt").write_bytes(b"x")
    assert shell("torchdata-ais put shards ais://pets", env, tmp_path).returncode == 0
    for line, code in [
        ("torchdata-ais ls ais://pets | head -1", (0, 141)),
        ("torchdata-ais cat ais://pets/shard-000.tar | true", (0, 141)),
        ("torchdata-ais ls ais://pets | false", (1,)),
        ("torchdata-ais ls ais://pets >&-", (0,)),
        ("torchdata-ais --help | head -1", (0, 1)),
    ]:
        done = shell(line, env, tmp_path)
        assert done.returncode in code, (line, done)
        assert not re.search("rror|Broken|Traceback|Exception", done.stderr), (line, done.stderr)
    for line, says in [
        ("torchdata-ais ls ais://pets > /dev/full", "standard output: the disk is full"),
        (
            "torchdata-ais cat ais://pets/shard-000.tar > /dev/full",
            "standard output: the disk is full (No space left on device). Free space",
        ),
        ("torchdata-ais --help > /dev/full", "No space left on device"),
        ("torchdata-ais cat ais://pets/shard-000.tar >&-", "Standard output is closed"),
        ("ulimit -f 4; torchdata-ais get ais://pets/shard-000.tar big.tar", "big.tar"),
    ]:
        done = shell(f"trap '' XFSZ; {line}", env, tmp_path)
        assert done.returncode in (1, 2), (line, done)
        assert says in done.stderr
        assert done.stderr.count("\n") <= 2, done.stderr
    assert not list(tmp_path.glob("*big.tar*")), "nothing half-written"


@pytest.mark.ci
def test_colours_and_lines_of_a_terminal(env: dict[str, str], shards: Path, tmp_path: Path) -> None:
    words = ["ls", "--regex", "none", "ais://pets"]
    shown, code = terminal(words, env, tmp_path)
    assert code == 1
    assert shown.startswith("\x1b[1;31merror\x1b[0m: ")
    lines = ESCAPE.sub("", shown).splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 80 for line in lines)
    sentence = " ".join(lines[:2])
    assert "--regex=none; 3 were listed. Check bucket and prefix" in sentence, "lines end between words"
    plain, _ = terminal(words, env, tmp_path, NO_COLOR="1")
    assert "\x1b[" not in plain
    assert plain == ESCAPE.sub("", shown)
    piped = shell("torchdata-ais ls --regex none ais://pets", env, tmp_path).stderr
    assert "\x1b" not in piped
    assert len(piped.splitlines()[0]) > 80, "off a terminal a sentence is one line"


@pytest.mark.ci
def test_a_terminal_shows_text_asks_before_it_removes_and_has_help_in_colour(
    env: dict[str, str], shards: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    cluster.client().bucket("pets").object("a.txt").get_writer().put_content(b"one\x1b[2Jtwo\n")
    assert "one\\x1b[2Jtwo" in terminal(["cat", "ais://pets/a.txt"], env, tmp_path)[0]
    shown, code = terminal(["cat", "ais://pets/shard-001.tar"], env, tmp_path)
    assert code == 2
    assert "shard-001.tar is no text" in " ".join(shown.split())
    assert "\0" not in shown
    shown, code = terminal(["rm", "-r", "ais://pets"], env, tmp_path, b"n\n")
    assert code == 1
    assert "About to remove 4 objects, 30.7 kB, and 1 bucket: ais://pets." in shown
    assert len(names(cluster, "ais://pets")) == 4
    assert terminal(["rm", "-r", "ais://pets/a.txt"], env, tmp_path, b"y\n")[1] == 0
    assert len(names(cluster, "ais://pets")) == 3
    help_page, code = terminal(["ls", "--help"], env, tmp_path)
    assert code == 0
    assert "\x1b[" in help_page
    assert all(len(line) <= 80 for line in ESCAPE.sub("", help_page).splitlines())
    assert "\x1b" not in terminal(["ls", "--help"], env, tmp_path, NO_COLOR="1")[0]
    assert "\x1b" not in shell("torchdata-ais ls --help", env, tmp_path).stdout


def commands() -> Iterator[list[str]]:
    import typer

    from torchdata_ais.cli import app

    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for inner in getattr(command, "commands", {}):
            yield [name, inner]
        if not hasattr(command, "commands"):
            yield [name]


def test_every_help_page_has_examples_that_stand_whole() -> None:
    from typer.testing import CliRunner

    from torchdata_ais.cli import app

    for words in commands():
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
        lines = [line.strip() for line in shown.stdout.splitlines()]
        last = next(
            number for number, line in enumerate(lines) if line.startswith("Exit codes: 0 done, 1 failed")
        )
        examples = list(filter(None, lines[lines.index("Examples:") + 1 : last]))
        assert examples, words
        for line in examples:
            assert line.startswith(f"torchdata-ais {' '.join(words)}"), (words, line)


@pytest.mark.ci
def test_the_shell_completes_commands_and_options(env: dict[str, str], tmp_path: Path) -> None:
    def offered(words: str) -> list[str]:
        asked = {
            "_TORCHDATA_AIS_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        return shell("torchdata-ais", env, tmp_path, **asked).stdout.split()

    assert offered("torchdata-ais in") == ["info", "inspect", "index"]
    assert "--sheet" in offered("torchdata-ais inspect --")
    # With a command after it, bash stays: the command looks which shell has called it.
    assert "complete" in shell("torchdata-ais --show-completion; true", env, tmp_path).stdout


@pytest.mark.ci
@pytest.mark.parametrize(
    ("words", "resumed"),
    [
        (["put", "shards", "ais://new/"], "put shards ais://new/"),
        (["get", "ais://pets/", "out/"], "get ais://pets/ out/"),
        (
            ["convert", "ais://pets/shard-", "ais://new/%d.tar", "--manifest", "m.json"],
            "convert ais://pets/shard- ais://new/%d.tar --manifest m.json --resume",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_after_ctrl_c_the_command_says_how_to_go_on(
    words: list[str], resumed: str, env: dict[str, str], shards: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    """Interrupted at the second shard, run again as told: the same as if nothing had been."""
    put = words[0] == "put"
    rule = (
        cluster.faults.add(Delay(60), verb="PUT", object="shard-001.tar")
        if put
        else cluster.faults.add(Stall(at=100), object="shard-001.tar")
    )
    try:
        with subprocess.Popen(
            ["torchdata-ais", *words], stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
        ) as process:
            try:
                end = time.monotonic() + 60
                while not cluster.faults.fired(rule):
                    assert process.poll() is None
                    assert time.monotonic() < end
                    time.sleep(0.02)
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=60)
            finally:
                process.kill()
    finally:
        cluster.faults.clear()
    assert process.returncode == 130, told
    assert told == f"interrupted\nnext: torchdata-ais {resumed}\n"
    assert not list(tmp_path.rglob("*.part"))
    done = shell(told.splitlines()[1].removeprefix("next: "), env, tmp_path)
    assert done.returncode == 0, done.stderr
    if words[0] == "get":
        assert "there already" in done.stdout
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names(cluster, "ais://pets")
    else:
        assert names(cluster, "ais://new")
    if put:
        assert re.search("; [12] there already", done.stdout)
        assert names(cluster, "ais://new") == names(cluster, "ais://pets")


@pytest.mark.ci
def test_a_bar_shows_mb_and_rate_on_a_terminal(
    env: dict[str, str], shards: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    (tmp_path / "big").write_bytes(os.urandom(8_000_000))
    shown, code = terminal(["put", "big", "ais://pets/big"], env, tmp_path)
    assert code == 0
    assert re.search(r"put .*\d+\.\d/8\.0 MB", ESCAPE.sub("", shown))
    assert "/s" in ESCAPE.sub("", shown)
    assert shell("torchdata-ais put big ais://pets/other", env, tmp_path).stderr == ""


def test_the_package_is_the_same_command(env: dict[str, str], tmp_path: Path) -> None:
    ran = shell(f"{sys.executable} -m torchdata_ais --version", env, tmp_path)
    assert ran.stdout == shell("torchdata-ais --version", env, tmp_path).stdout


@pytest.mark.ci
def test_put_and_get_say_as_json_what_they_did(env: dict[str, str], shards: Path, tmp_path: Path) -> None:
    (shards / "more.txt").write_bytes(b"12345")
    told = json.loads(shell("torchdata-ais put --json shards ais://pets", env, tmp_path).stdout)
    assert (told["stored"], told["there"], told["size"]) == (1, 3, 5)
    assert [row["url"] for row in told["objects"] if row["stored"]] == ["ais://pets/more.txt"]
    told = json.loads(
        shell("torchdata-ais get --json 'ais://pets/shard-{0..2}.tar' out/ || true", env, tmp_path).stdout
        or "{}"
    )
    assert told == {}
    told = json.loads(
        shell("torchdata-ais get --json 'ais://pets/shard-{000..001}.tar' out/", env, tmp_path).stdout
    )
    assert (told["written"], told["there"]) == (2, 0)
