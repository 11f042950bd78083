"""Names that a regular expression of a client finds, in a process of its own that is ended when it takes too long.

Python's `re` takes for ever over ``(a+)+$``, and holds the interpreter meanwhile: one request would stop every node.
AIStore's own engine (RE2) cannot, but would be one more library for one request that is seldom made.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from .problem import ReplyError

DEADLINE_S = 3.0
_PROGRAM = Path(__file__).with_name("search_program.py")
_AT_ONCE = threading.BoundedSemaphore(2)


def find_names(pattern: str, names: Sequence[str]) -> list[int]:
    """Return the positions of the names in which the pattern is found; none for a pattern that is no pattern.

    Raises:
        ReplyError: 400 for a pattern that takes more than `DEADLINE_S`, 429 when too many are being searched for.
    """
    if re.escape(pattern) == pattern:
        return [position for position, name in enumerate(names) if pattern in name]
    if not _AT_ONCE.acquire(timeout=2 * DEADLINE_S):
        raise ReplyError(429, "too many regular expressions at once")
    try:
        done = subprocess.run(  # noqa: S603  our own file under our own interpreter
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            input=json.dumps([pattern, *names]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=True,
        )
    except subprocess.TimeoutExpired as cause:
        message = f"the regular expression {pattern!r:.100} takes longer than {DEADLINE_S:g} s"
        raise ReplyError(400, message) from cause
    except subprocess.CalledProcessError as cause:
        raise ReplyError(400, f"the regular expression {pattern!r:.100} takes too much memory") from cause
    finally:
        _AT_ONCE.release()
    return [int(position) for position in json.loads(done.stdout)]
