"""One ETL worker: the user's class in the SDK's server on 127.0.0.1.

Started by file path with a port and the id of the cluster's process, with which it ends. It answers that process only:
the SDK's server would give a web page the transform of any file of this machine (``etl_fqn=``).
"""

from __future__ import annotations

import base64
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

_PARENT_CHECK_S = 0.5


def main() -> None:
    """Load the class from the environment and serve until killed."""
    port, parent = int(sys.argv[1]), int(sys.argv[2])
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]

    payload = base64.b64decode(os.environ["ETL_CLASS_PAYLOAD"])
    server = cloudpickle.loads(payload)  # the user's own code, which etl=True permits
    guarded(server, port)(host="127.0.0.1", port=port).start()


def guarded(server: Any, port: int) -> Any:
    """Return a subclass of the SDK's plain server that refuses web pages.

    Other classes are returned as they are.
    """
    from aistore.sdk.etl.webserver.http_multi_threaded_server import HTTPMultiThreadedServer

    if not (isinstance(server, type) and issubclass(server, HTTPMultiThreadedServer)):
        return server

    class Guarded(server):  # type: ignore[misc]  # untyped
        class RequestHandler(server.RequestHandler):  # type: ignore[misc]
            def parse_request(self) -> bool:
                if not super().parse_request():
                    return False
                if self.headers.get_all("Host") == [f"127.0.0.1:{port}"] and "Origin" not in self.headers:
                    return True
                self.send_error(403, "refused: only the embedded cluster may use this worker")
                return False

    Guarded.__name__ = server.__name__
    return Guarded


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
