"""Run webdataset 1.0.2's own tests with `torchdata_ais.webdataset` under its name.

    git clone --branch 1.0.2 https://github.com/webdataset/webdataset CHECKOUT
    pip install -e '.[test]' lmdb
    python tests/upstream/run_webdataset.py CHECKOUT

Nothing is fetched from the web: a proxy on this machine stands for it. A minute or two.
"""

from __future__ import annotations

import harness
import webdataset_data


def main() -> int:
    options = harness.arguments_of(__doc__.splitlines()[0])
    harness.demand(["imageio", "lmdb", "msgpack", "pytest_timeout", "torchvision"], options)
    webdataset_data.add_missing(options.checkout)
    plugin = "outcomes" if options.stock else "webdataset_plugin"
    with webdataset_data.proxy(options.checkout) as address:
        more = {"http_proxy": address, "https_proxy": address, "no_proxy": "", "NO_PROXY": ""}
        outcomes = harness.run(options.checkout, ["tests"], plugin, options.timeout, options.select, more)
    return harness.report("webdataset", outcomes, options)


if __name__ == "__main__":
    raise SystemExit(main())
