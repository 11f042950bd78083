"""The tables out of `table.json`, and that file out of a run.

    python benchmarks/table.py              # write the table of table.json into the README, and draw the figure
    python benchmarks/table.py --measure    # measure all of it first: an hour on a quiet machine of 2 cores
    python benchmarks/table.py --measure --case crop crop-12mp --rounds 3    # these anew, the others stay

Each case in `table.json` has its own commit and date. A test compares README and figure with it, so that no number
stands there by hand.
"""

import argparse
import json
import pathlib

import figure

HERE = pathlib.Path(__file__).parent
JSON = HERE / "table.json"
README = HERE.parent / "README.md"
ALL = HERE / "README.md"
BEGIN, END = "<!-- made by benchmarks/table.py -->\n", "<!-- end -->\n"
CASES = (
    "decode",
    "crop",
    "crop-12mp",
    "undecoded",
    "small",
    "slow-link",
    "by-number",
    "mixture",
    "first-batch",
    "first-decoded",
    "second-epoch",
)

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
    (
        "random crop of 224x224 out of 500x375, 2 workers; webdataset: torchvision on PIL",
        "crop",
        "ours, DataLoader2, W=2",
        "webdataset, W=2",
    ),
    (
        "the same, webdataset given a fast decoder, torchvision on tensors",
        "crop",
        "ours, DataLoader2, W=2",
        "webdataset + fast decoder, W=2",
    ),
    (
        "random crop out of 12 megapixels, 2 workers; webdataset: torchvision on PIL",
        "crop-12mp",
        "ours, DataLoader2, W=2",
        "webdataset, W=2",
    ),
    (
        "the same, webdataset given a fast decoder, torchvision on tensors",
        "crop-12mp",
        "ours, DataLoader2, W=2",
        "webdataset + fast decoder, W=2",
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
    (
        "any sample by number, decoded, 2 workers (the other column: the SDK, a request a member)",
        "by-number",
        "ours, SampleDataset, W=2",
        "SDK, a member a request, W=2",
    ),
    ("two data sets, 0.7 and 0.3, 2 workers", "mixture", "ours, Mixture, W=2", "webdataset, RandomMix, W=2"),
    ("first batch of bytes, one process, ms", "first-batch", "ours, W=0", "webdataset, W=0"),
    ("first batch of bytes, 2 workers, ms", "first-batch", "ours, DataLoader2, W=2", "webdataset, W=2"),
    (
        "first batch of images of 224x224, 2 workers, ms",
        "first-decoded",
        "ours, DataLoader2, W=2",
        "webdataset, W=2",
    ),
    (
        "first batch of a second epoch, records of 4 KB, 2 workers, ms",
        "second-epoch",
        "ours, DataLoader2, W=2",
        "webdataset, W=2",
    ),
]
EXCERPT = [
    ("decode to 224x224", "decode", "ours, DataLoader2, W=2", "webdataset, W=2"),
    (
        "the same, webdataset with the same JPEG decoder",
        "decode",
        "ours, DataLoader2, W=2",
        "webdataset + fast decoder, W=2",
    ),
    ("bytes as stored", "undecoded", "ours, DataLoader2, W=2", "webdataset, W=2"),
]
UNMEASURED = "not measured"


def numbers(results, case, name):
    return results["cases"].get(case, {}).get("rows", {}).get(name)


def cell(line):
    return f"{line['metric']['median']:.0f}" if line else UNMEASURED


def ratio(ours, peer):
    found = ours and ours["ratios"].get(peer)
    return UNMEASURED if not found else f"{found:.2f}" if found < 3 else f"{found:.1f}"


def cpu_ratio(ours, peer):
    """Processor time of a sample, beside the peer's."""
    if not ours or not peer or "cpu_ms_per_sample" not in ours or "cpu_ms_per_sample" not in peer:
        return UNMEASURED
    return f"{ours['cpu_ms_per_sample']['median'] / peer['cpu_ms_per_sample']['median']:.2f}"


def when(results):
    """Return when, and at which commit, each case was measured."""
    groups = {}
    for name, case in results["cases"].items():
        own = case.get("measured", results["surroundings"] | {"rounds": results["rounds"]})
        commit = "/".join(one[:7] for one in own["commit"].split("/"))
        busy = own.get("load_before", 0) > own["cpus"] / 2 if own.get("cpus") else False
        text = f"measured on {own['date']} at commit {commit}, {own['rounds']} rounds"
        groups.setdefault(
            text + (" on a busy machine: the processor time counts" if busy else ""), []
        ).append(name)
    if len(groups) <= 1:
        return "".join(groups)
    return "; ".join(f"{', '.join(f'`{name}`' for name in names)} {text}" for text, names in groups.items())


def render(results):
    """Return the table of all rows, with what it was measured on."""
    where = results["surroundings"]
    lines = [
        (
            f"Samples a second against webdataset {where['versions']['webdataset']} with as many workers, medians of"
            f" interleaved rounds on {where['cpus']} cores ({where['processor']}), served by `{where['server']}` on the"
            f" same cores; {when(results)}."
        ),
        "",
    ]
    rows = []
    for label, case, name, peer in ROWS:
        ours, theirs = numbers(results, case, name), numbers(results, case, peer)
        if ours or theirs:  # a case that nobody has measured yet is not shown
            rows.append(
                [label, cell(ours), cell(theirs), ratio(ours, theirs and peer), cpu_ratio(ours, theirs)]
            )
    head = ["case", "this package", "webdataset", "ratio", "processor time"]
    if all(row[-1] == UNMEASURED for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    lines += [f"| {' | '.join(row)} |" for row in [head, *rows]]
    lines.insert(3, "|---" * len(head) + "|")
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


def excerpt(results):
    """Return the rows of the project's README: a ratio each."""
    peer = f"webdataset {results['surroundings']['versions']['webdataset']}"
    lines = [
        f"Samples a second beside {peer}, two workers on two cores, JPEGs of 500x375:",
        "",
        "| case | this package | webdataset | ratio |",
        "|---|---|---|---|",
    ]
    for label, case, name, other in EXCERPT:
        ours, theirs = numbers(results, case, name), numbers(results, case, other)
        lines.append(f"| {label} | {cell(ours)} | {cell(theirs)} | {ratio(ours, theirs and other)} |")
    return "\n".join(lines) + "\n"


def put(readme, table):
    """Return a text with the table between its marks."""
    before, mark, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"README.md lacks the marks {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + table + END + after


def merged(before, after):
    """Return the results with the cases of `after`, each with what it was measured with."""
    own = after["surroundings"] | {"rounds": after["rounds"]}
    keep = {name: case for name, case in before["cases"].items() if name not in after["cases"]}
    kept = {
        name: {"measured": before["surroundings"] | {"rounds": before["rounds"]}} | case
        for name, case in keep.items()
    }
    new = {name: case | {"measured": own} for name, case in after["cases"].items()}
    return after | {"cases": kept | new}


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first, and write table.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=CASES, metavar="CASE")
    parser.add_argument("--samples", type=int, help="so many samples in each kind of data")
    arguments = parser.parse_args(words)
    if arguments.measure:
        import run

        before = json.loads(JSON.read_text())
        few = ["--samples", str(arguments.samples)] if arguments.samples else []
        fresh = JSON.with_suffix(".new")
        run.main(["--case", *arguments.case, *few, "--rounds", str(arguments.rounds), "--json", str(fresh)])
        JSON.write_text(json.dumps(merged(before, json.loads(fresh.read_text())), indent=1) + "\n")
        fresh.unlink()
    results = json.loads(JSON.read_text())
    README.write_text(put(README.read_text(), excerpt(results)))
    ALL.write_text(put(ALL.read_text(), render(results)))
    figure.SVG.write_text(figure.draw(results))


if __name__ == "__main__":
    main()
