"""Run torchdata 0.9.0's own tests of DataLoader2 with our reading service in place of its own.

    git clone --branch v0.9.0 https://github.com/pytorch/data CHECKOUT
    pip install -e '.[test]' expecttest
    python tests/upstream/run_torchdata.py CHECKOUT

Some ten minutes. `--stock` runs torchdata's own service, which takes longer.
"""

from __future__ import annotations

import harness


def main() -> int:
    options = harness.arguments_of(__doc__.splitlines()[0])
    harness.demand(["expecttest", "torchdata", "pytest_timeout"], options)
    plugin = "outcomes" if options.stock else "torchdata_plugin"
    folder = options.checkout / "test"
    outcomes = harness.run(folder, "dataloader2", plugin, options.timeout, options.select)
    return harness.report("torchdata", outcomes, options)


if __name__ == "__main__":
    raise SystemExit(main())
