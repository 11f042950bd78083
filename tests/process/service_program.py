"""A training script that ends badly: ``python service_program.py HOW START_METHOD``, for test_service_end.py."""

from __future__ import annotations

import signal
import sys
import threading
import time

from service_pipes import numbers, short_sleep, sleep_for_ever_at_six
from service_sessions import load


def main(how: str, method: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off in the background
    function = sleep_for_ever_at_six if how == "exit-busy" else short_sleep
    pipe = numbers(100_000).map(function)
    loader = load(pipe, 2, method)
    items = iter(loader)
    next(items)
    print("READY", flush=True)
    if how == "exit-error":
        raise RuntimeError("the script is wrong")
    if how == "exit-thread":
        threading.Thread(target=lambda: [next(items) for _ in range(100)]).start()
    elif how == "interrupt":
        for _ in items:
            pass
    elif how.startswith("wait"):
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
