"""One ETL worker: the user's server class, run by the SDK's own HTTP server on 127.0.0.1.

Started by file path with a port and the id of the cluster's process, with which it ends.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
import threading
import time
from pathlib import Path

_PARENT_CHECK_S = 0.5


def main() -> None:
    """Load the class from the environment and serve until killed."""
    port, parent = int(sys.argv[1]), int(sys.argv[2])
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    payload = base64.b64decode(os.environ["ETL_CLASS_PAYLOAD"])
    server = cloudpickle.loads(payload)  # the user's own code, which etl=True asked to be run
    server(host="127.0.0.1", port=port).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
