"""What AIStore knows, of `vocabulary.ini`: the paths, actions and questions of its API, served here or not."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

_KNOWN = ConfigParser()
_KNOWN.read_string(Path(__file__).with_name("vocabulary.ini").read_text())
_PATHS = {name: frozenset(follow.split()) for name, follow in _KNOWN["paths"].items()}
_BESIDE_V1 = frozenset(_KNOWN["words"]["beside_v1"].split())

ACTIONS = frozenset(_KNOWN["words"]["actions"].split())
"""Actions and questions that AIStore knows: those without a route are 501, others 400 as on a real node."""


def is_known_path(path: str) -> bool:
    """Whether a path is one of AIStore's API, served here or not.

    >>> is_known_path("/v1/download/abort"), is_known_path("/v1/nonsense"), is_known_path("/v2/buckets")
    (True, False, False)
    """
    first, *rest = path.strip("/").split("/")
    if first != "v1":
        return first in _BESIDE_V1
    if not rest or rest[0] not in _PATHS:
        return False
    follow = _PATHS[rest[0]]
    return not follow or len(rest) == 1 or rest[1] in follow
