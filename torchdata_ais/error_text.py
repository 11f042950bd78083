"""The text of an error: made of its parts, and taken apart again where another process sent nothing but the text.

torch and torchdata bring an exception out of a worker as ``type(error)("Caught ... Original Traceback ...")``.
Everywhere else the parts are attributes of the error, and nobody reads the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Parts", "composed", "sentence_case", "taken_apart"]

# What messages begin with that is an ordinary word: all else may be a name, a field, a function or a command.
_LIST = (
    "a an the no not it its this that there these those nothing nobody one two three every each all some any both "
    "neither another other cannot unknown worker workers random rank row rows sample samples field fields line images "
    "arrays commands dispatching decoding sorting local shards shard readers port process processes rounded rate out "
    "epoch redirected decompressing data"
)
_WORDS = frozenset(_LIST.split())
_COMMANDS = frozenset(["pip", "export", "ais"])
_FIRST = re.compile(r"([a-z]+)(?=[ ,']|$)")
_PLACE = re.compile(r"^\[at\] (\{.*\})$", re.MULTILINE)
_CAUGHT = re.compile(r"\ACaught (\w+) (in [^\n]*?)\.\nOriginal (Traceback .*)\Z", re.DOTALL)
_TODO = re.compile(r"\. (?=[A-Z])")


class Parts(NamedTuple):
    """An error as read from its text.

    Attributes:
        what: The first sentence.
        todo: The second, or ``""``.
        place: What the ``[at]`` line holds, and ``in``: the process that sent the text.
        notes: Notes of the exception, as the process that sent the text shows them.
    """

    what: str
    todo: str
    place: dict[str, Any]
    notes: list[str]


def sentence_case(text: str, *, todo: bool = False) -> str:
    """Return `text` with a capital letter, unless it begins with what is not an ordinary word.

    Args:
        text: The sentence.
        todo: It says what to do, so that it begins with a verb, or with a command to type.

    Example:
        >>> sentence_case("the shard ends early"), sentence_case("url is no field")
        ('The shard ends early', 'url is no field')
        >>> sentence_case("check the URL", todo=True), sentence_case("pip install pillow", todo=True)
        ('Check the URL', 'pip install pillow')
    """
    first = _FIRST.match(text)
    if first and (first[1] not in _COMMANDS if todo else first[1] in _WORDS):
        return text[0].upper() + text[1:]
    return text


def composed(what: str, todo: str, place: Mapping[str, Any]) -> str:
    """Return what users see: the sentences, and the place in a line of its own.

    Example:
        >>> print(composed("It broke", "Mend it", {"offset": 512}))
        It broke. Mend it
        [at] {"offset": 512}
    """
    text = f"{what}. {todo}" if todo else what
    return f"{text}\n[at] {json.dumps(place, default=str)}" if place else text


def taken_apart(text: str) -> Parts:
    r"""Return the parts of an error of which nothing but the text is left.

    Example:
        >>> taken_apart('It broke. Mend it\n[at] {"offset": 512}')
        Parts(what='It broke', todo='Mend it', place={'offset': 512}, notes=[])
    """
    notes: list[str] = []
    process = ""
    caught = _CAUGHT.match(text)
    if caught:
        name, where, trace = caught.groups()
        begins = list(re.finditer(rf"^(?:\w+\.)*{name}: ", trace, re.MULTILINE))
        if begins:
            text = trace[begins[-1].end() :].rstrip("\n")
            process = where.removeprefix("in ")
    places = list(_PLACE.finditer(text))
    place: dict[str, Any] = {}
    if places:
        try:
            place = json.loads(places[-1][1])
        except ValueError:
            pass
        else:
            after = text[places[-1].end() :].strip("\n")
            notes = [after] if after else []
            text = text[: places[-1].start()].removesuffix("\n")
    if process:
        place["in"] = process
    what, *todo = _TODO.split(text, maxsplit=1)
    return Parts(what, todo[0] if todo else "", place, notes)
