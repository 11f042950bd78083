"""Check that a pickled pipe is of this version.

A pickle holds the attributes of a stage. Another version would read them as attributes of its own, so each stage
pickles a mark.
"""

from __future__ import annotations

from typing import Any

from torchdata_ais.errors import StateError

MARK = ("pickled by torchdata_ais", 1)
"""The number changes when attributes of stages change so that an older pickle does not fit."""


def unmarked(state: dict[str, Any]) -> dict[str, Any]:
    """Return the pickled attributes of a stage without the mark.

    Raises:
        StateError: They have no mark, or that of another version.
    """
    name, number = MARK
    if state.get(name) != number:
        raise StateError.at(
            "this pipe was pickled by another version of torchdata_ais",
            todo="create it again with the code that created it; "
            "a pickle of a pipe is for other processes of the same program",
        )
    return {attribute: value for attribute, value in state.items() if attribute != name}
