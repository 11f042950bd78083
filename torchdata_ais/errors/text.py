"""Text of errors: composed, and parsed from another process.

torch and torchdata bring an exception out of a worker as ``type(error)("Caught ... Original Traceback ...")``.
Everywhere else the parts are attributes of the error, and the text is not parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

_WORD = re.compile(r"[a-z]+(?=[ ,']|$)")
_PLACE = re.compile(r"^\[at\] (\{.*\})$", re.MULTILINE)
_CAUGHT = re.compile(r"\ACaught (\w+) (in [^\n]*?)\.\nOriginal (Traceback .*)\Z", re.DOTALL)
_TODO = re.compile(r"\. (?=[A-Z])")


class Way(NamedTuple):
    """One way out of an error, for programs, for commands, or for both.

    The text of one that begins with a sign joins as it is, others by ", or".
    """

    text: str
    programs: bool = True
    commands: bool = True


def in_programs(text: str) -> Way:
    """Return an alternative that cannot be typed at a shell."""
    return Way(text, commands=False)


def in_commands(text: str) -> Way:
    """Return an alternative for commands; functions word it differently."""
    return Way(text, programs=False)


class Remedy(str):
    """Advice of an error that a command may show; as text, for programs.

    An argument is written ``name=`` or ``name=value``. A command shows its option instead, and leaves out the ways
    with arguments that it does not have. The best way comes first.

    Example:
        >>> remedy = Remedy("write elsewhere", "pass overwrite=True", in_programs("catch the error"))
        >>> remedy, len(remedy.ways)
        ('write elsewhere, or pass overwrite=True, or catch the error', 3)
    """

    __slots__ = ("ways",)
    ways: tuple[Way, ...]

    def __new__(cls, *ways: str | Way) -> Remedy:  # noqa: D102
        known = tuple(way if isinstance(way, Way) else Way(way) for way in ways if way)
        remedy = super().__new__(cls, joined([way.text for way in known if way.programs]))
        remedy.ways = known
        return remedy

    def __reduce__(self) -> tuple[object, ...]:
        return Remedy, self.ways

    @classmethod
    def of(cls, text: str) -> Remedy:
        """Return `text` as a remedy, of one way if it is none yet."""
        return text if isinstance(text, Remedy) else cls(*filter(None, [text]))


def joined(ways: list[str]) -> str:
    """Return the ways as one sentence.

    Example:
        >>> joined(["write elsewhere", "wait", "; the log says more"])
        'write elsewhere, or wait; the log says more'
    """
    text = "".join(way if way[0] in ",;:" else f", or {way}" for way in ways)
    return text.removeprefix(", or ").lstrip(",;: ")


class Sentences(str):
    """Fact and advice of an error as one text that keeps its parts.

    Example:
        >>> Sentences("It broke", Remedy("mend it")), Sentences("It broke", "mend it").todo
        ('It broke. mend it', 'mend it')
    """

    __slots__ = ("todo", "what")
    what: str
    todo: str

    def __new__(cls, what: str, todo: str = "") -> Sentences:  # noqa: D102
        text = super().__new__(cls, composed(what, todo, {}))
        text.what, text.todo = what, todo
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return Sentences, (self.what, self.todo)


def sentence_case(text: str) -> str:
    """Return `text` with a capital letter, unless it begins with a name.

    Names contain other characters than letters.

    Example:
        >>> sentence_case("the shard ends early"), sentence_case("rename() was given no name")
        ('The shard ends early', 'rename() was given no name')
        >>> sentence_case("'url' is no field"), sentence_case("n=3"), sentence_case("train-0.tar: gone")
        ("'url' is no field", 'n=3', 'train-0.tar: gone')
    """
    return text[0].upper() + text[1:] if _WORD.match(text) else text


# Schemes of URIs by the provider in AIStore's requests, where these differ.
_SCHEMES = {"aws": "s3", "gcp": "gs", "azure": "az"}

_OBJECT = re.compile(r"https?://[^/?#]+/v1/objects/([^/?#]+)/([^?#]+)(?:\?([^#]*))?")


def short_name(url: str) -> str:
    """Return the short name of an object, ``ais://bucket/name``; else `url`.

    URLs of an object as an ETL returns it, or of a member of it, stay.

    Example:
        >>> short_name("http://h:51080/v1/objects/pets/a%20b.tar?provider=aws"), short_name("http://h/s.tar")
        ('s3://pets/a b.tar', 'http://h/s.tar')
    """
    match = _OBJECT.fullmatch(url)
    if match is None:
        return url
    options = parse_qs(match[3] or "")
    provider, space = (options.pop(name, [""])[0] for name in ("provider", "namespace"))
    if options:
        return url
    return object_uri(provider or "ais", space, match[1], unquote(match[2]))


def object_uri(provider: str, namespace: str, bucket: str, name: str) -> str:
    """Return the URI of an object, or of a bucket if `name` is empty.

    Example:
        >>> object_uri("aws", "", "pets", "a.tar"), object_uri("ais", "@#mine", "pets", "")
        ('s3://pets/a.tar', 'ais://@#mine/pets')
    """
    space = f"{namespace}/" if namespace else ""
    return f"{_SCHEMES.get(provider, provider)}://{space}{bucket}{f'/{name}' if name else ''}"


def composed(what: str, todo: str, place: Mapping[str, object]) -> str:
    """Return the text for users: the sentences, then a line with the place.

    Example:
        >>> print(composed("It broke", "Mend it", {"offset": 512}))
        It broke. Mend it
        [at] {"offset": 512}
    """
    text = f"{what}. {todo}" if todo else what
    return f"{text}\n[at] {json.dumps(place, default=str)}" if place else text


def taken_apart(text: str) -> tuple[str, str, dict[str, Any], list[str]]:
    r"""Return fact, advice, place and notes of an error, from its text.

    The process that sent the text is ``in`` of the place.

    Example:
        >>> taken_apart('It broke. Mend it\n[at] {"offset": 512}')
        ('It broke', 'Mend it', {'offset': 512}, [])
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
        except (ValueError, RecursionError):
            pass
        else:
            after = text[places[-1].end() :].strip("\n")
            notes = [after] if after else []
            text = text[: places[-1].start()].removesuffix("\n")
    if process:
        place["in"] = process
    what, *todo = _TODO.split(text, maxsplit=1)
    return what, todo[0] if todo else "", place, notes
