"""Run torchdata 0.9.0's own tests of DataLoader2 with our reading service in place of its own.

    git clone --branch v0.9.0 https://github.com/pytorch/data CHECKOUT
    pip install -e '.[test]' expecttest
    python tests/upstream/run_torchdata.py CHECKOUT

Some ten minutes. `--own` runs all that is ours in place of torchdata, as where torchdata is 0.10 or not there: its
DataLoader2, services, adapters, seeds, graph functions and pipes, which more of the tests reach. `--stock` runs
torchdata's own service, which takes longer.
"""

from __future__ import annotations

import os

import harness

OURS = ["dataloader2", "test_graph.py", "test_distributed.py", "test_seed_generator.py", "test_adapter.py"]
"""The tests that import nothing of torchdata but what there is of ours."""


def main() -> int:
    parser = harness.parser_of(__doc__.splitlines()[0])
    parser.add_argument("--own", action="store_true", help="run all our own classes in place of torchdata")
    options = parser.parse_args()
    harness.demand(["expecttest", "pytest_timeout"] + ["torchdata"] * (not options.own), options)
    plugin = "outcomes" if options.stock else "torchdata_plugin"
    targets, project = (OURS, "torchdata, all of it ours") if options.own else (["dataloader2"], "torchdata")
    more = {}
    if options.own:
        paths = [str(harness.HERE / "own"), os.environ.get("PYTHONPATH", "")]
        more = {"TORCHDATA_OWN": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    outcomes = harness.run(options.checkout / "test", targets, plugin, options.timeout, options.select, more)
    return harness.report(project, outcomes, options)


if __name__ == "__main__":
    raise SystemExit(main())
