"""The README's table out of `table.json`, and that file out of a run.

    python benchmarks/table.py              # write the table of table.json into the README
    python benchmarks/table.py --measure    # measure all of it first: half an hour on a quiet machine of 2 cores

A test compares the README with `table.json`, so that no number stands there by hand.
"""

import argparse
import json
import pathlib

HERE = pathlib.Path(__file__).parent
JSON = HERE / "table.json"
README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by benchmarks/table.py -->\n", "<!-- end -->\n"
CASES = ("decode", "undecoded", "small", "slow-link", "first-batch")

DECODE = "JPEG to 224x224"
ROWS = [
    (
        f"{DECODE}, DataLoader2, 2 workers, with `[fast]`",
        "decode",
        "ours, DataLoader2, W=2",
        "webdataset, W=2",
    ),
    (
        "the same, webdataset given the same fast decoder",
        "decode",
        "ours, DataLoader2, W=2",
        "webdataset + fast decoder, W=2",
    ),
    (
        "the same, neither with a fast decoder",
        "decode",
        "ours, DataLoader2, no [fast], W=2",
        "webdataset, W=2",
    ),
    (
        f"{DECODE}, one process, 2 decode threads (webdataset: 2 workers)",
        "decode",
        "ours, threads, W=0",
        "webdataset, W=2",
    ),
    ("bytes as stored, one process", "undecoded", "ours, W=0", "webdataset, W=0"),
    (
        "the same, webdataset with an opener on requests",
        "undecoded",
        "ours, W=0",
        "webdataset + requests, W=0",
    ),
    ("bytes as stored, DataLoader2, 2 workers", "undecoded", "ours, DataLoader2, W=2", "webdataset, W=2"),
    (
        "the same, webdataset with an opener on requests",
        "undecoded",
        "ours, DataLoader2, W=2",
        "webdataset + requests, W=2",
    ),
    ("records of 4 KB, one process", "small", "ours, W=0", "webdataset, W=0"),
    ("records of 4 KB, DataLoader2, 2 workers", "small", "ours, DataLoader2, W=2", "webdataset, W=2"),
    (
        "connections limited to 60 MB/s, one connection each",
        "slow-link",
        "ours, 1 open, W=0",
        "webdataset, W=0",
    ),
    (
        "the same, `open_shards=4`: four connections against one",
        "slow-link",
        "ours, 4 open, W=0",
        "webdataset, W=0",
    ),
    ("first batch of bytes, one process, ms", "first-batch", "ours, W=0", "webdataset, W=0"),
    ("first batch of bytes, 2 workers, ms", "first-batch", "ours, DataLoader2, W=2", "webdataset, W=2"),
]
UNMEASURED = "not measured"


def numbers(results, case, name):
    return results["cases"].get(case, {}).get("rows", {}).get(name)


def cell(line):
    return f"{line['metric']['median']:.0f}" if line else UNMEASURED


def ratio(ours, peer):
    found = ours and ours["ratios"].get(peer)
    return UNMEASURED if not found else f"{found:.2f}" if found < 3 else f"{found:.1f}"


def render(results):
    """Return what stands between the marks in the README."""
    where = results["surroundings"]
    commit = "/".join(name[:7] for name in where["commit"].split("/"))
    lines = [
        (
            f"Samples a second against webdataset {where['versions']['webdataset']} with as many workers, medians of"
            f" {results['rounds']} interleaved rounds on {where['cpus']} cores ({where['processor']}), served by"
            f" `{where['server']}` on the same cores; measured on {where['date']} at commit {commit}."
        ),
        "",
        "| case | this package | webdataset | ratio |",
        "|---|---|---|---|",
    ]
    for label, case, name, peer in ROWS:
        ours = numbers(results, case, name)
        lines.append(
            f"| {label} | {cell(ours)} | {cell(numbers(results, case, peer))} | {ratio(ours, peer)} |"
        )
    limit = cell(numbers(results, "decode", "limit, W=2"))
    unchecked = cell(numbers(results, "undecoded", "ours, no checksum, W=0"))
    lines += [
        "",
        (
            "Two processes that decode and resize the same JPEGs out of memory, and do nothing else, reach"
            f" {limit} images a second. The checksum of every shard is compared in all rows of this package;"
            f" without that, bytes as stored come at {unchecked} a second. webdataset compares none, and reads"
            " through a `curl` for each shard unless a row says otherwise."
        ),
    ]
    return "\n".join(lines) + "\n"


def put(readme, table):
    """Return the README's text with the table between its marks."""
    before, mark, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{README.name} lacks the marks {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + table + END + after


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first, and write table.json")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(words)
    if arguments.measure:
        import run

        run.main(["--case", *CASES, "--rounds", str(arguments.rounds), "--json", str(JSON)])
    README.write_text(put(README.read_text(), render(json.loads(JSON.read_text()))))


if __name__ == "__main__":
    main()
