"""Runs the tests of another project with our classes in place of its own, and compares what fails with what is known.

`known_differences.json` says of each project how many tests it has and which of them fail here, by kind, and each
kind by its reason. Any difference, in either direction, is an exit status of 1: a test that fails and is not listed, a
listed one that passes, one that is gone or did not end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
KNOWN = HERE / "known_differences.json"


def arguments_of(about: str) -> argparse.Namespace:
    return parser_of(about).parse_args()


def parser_of(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("checkout", type=Path, help="a checkout of the project")
    parser.add_argument("--stock", action="store_true", help="run the project's own classes, to compare")
    parser.add_argument("--timeout", type=int, default=240, help="seconds a test may take (default 240)")
    parser.add_argument("--known", type=Path, default=KNOWN, help="the list of differences")
    parser.add_argument("--lax", action="store_true", help="begin even if libraries are missing")
    parser.add_argument(
        "-k", dest="select", default="", help="only these tests, as for pytest; nothing is compared"
    )
    return parser


def run(
    folder: Path,
    targets: Sequence[str],
    plugin: str,
    timeout: int,
    select: str = "",
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Run pytest in `folder`; return the outcome of each test by its name: what `record` below has written."""
    with tempfile.TemporaryDirectory() as place:
        results = Path(place, "results")
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        environment |= {"UPSTREAM_RESULTS": str(results), **(more or {})}
        paths = [str(HERE), str(HERE.parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, "-m", "pytest", *targets, "-p", plugin, "-o", "addopts=", "-W", "ignore"]
        command += [
            "-p",
            "no:cacheprovider",
            "--rootdir=.",  # ids that do not depend on the folders above the checkout
            "--timeout",
            str(timeout),
            "--tb=short",
            "-rfE",
            "-v",
            "--continue-on-collection-errors",
        ]
        status = subprocess.run([*command, "-k", select], cwd=folder, env=environment, check=False).returncode
        if not results.exists():
            raise SystemExit(f"no test has run; pytest ended with status {status}")
        lines = [json.loads(line) for line in results.read_text().splitlines()]
    outcomes = dict.fromkeys(lines[0], "did not end")
    for name, outcome in lines[1:]:
        # A failing teardown outweighs a test that passed.
        if outcomes.get(name) not in ("failed", "skipped"):
            outcomes[name] = outcome
    return outcomes


def compare(outcomes: Mapping[str, str], known: Mapping[str, object], stock: bool = False) -> list[str]:
    """Return a line for each difference between the outcomes and the list."""
    kinds: Mapping[str, Mapping[str, object]] = known["kinds"]  # type: ignore[assignment]
    listed = {
        test: kind for kind, entry in kinds.items() for test in entry["tests"] if entry["stock"] or not stock
    }
    wrong = []
    if len(outcomes) != known["collected"]:
        wrong.append(f"{len(outcomes)} tests were found, not {known['collected']}: is it the right version?")
    for name, outcome in sorted(outcomes.items()):
        if outcome in ("failed", "did not end") and name not in listed:
            wrong.append(f"{name}: {outcome}")
        elif name in listed and outcome not in ("failed", "skipped"):
            wrong.append(f"{name}: {outcome}, but listed as a difference ({listed[name]})")
    wrong += [f"{name}: listed, but not there" for name in sorted(set(listed) - set(outcomes))]
    return wrong


def report(project: str, outcomes: Mapping[str, str], options: argparse.Namespace) -> int:
    """Print counts and differences; return the exit status."""
    counts = Counter(outcomes.values())
    print(
        f"{project}: {len(outcomes)} tests, " + ", ".join(f"{n} {what}" for what, n in counts.most_common())
    )
    if options.select:
        return int(counts["failed"] + counts["did not end"] > 0)
    known = json.loads(options.known.read_text())[project]
    wrong = compare(outcomes, known, options.stock)
    print("\n".join(wrong) or "no difference to the list")
    return int(bool(wrong))


def demand(modules: Sequence[str], options: argparse.Namespace) -> None:
    """End with a sentence if a library is missing that the project's tests need."""
    if options.lax:
        return
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"the tests need {', '.join(missing)}: pip install {' '.join(missing)}")


def record(entry: object) -> None:
    """Write a line of results, in the process of pytest."""
    with Path(os.environ["UPSTREAM_RESULTS"]).open("a") as results:
        results.write(json.dumps(entry) + "\n")
