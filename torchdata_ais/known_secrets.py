"""The secrets that are known, told by `hide`: no text shows them, in whatever form a server quotes them.

They are kept for the process: an error is built far from the options.
"""

from __future__ import annotations

import json
import re
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MASK = "***"
SHORT = 4  # what has fewer characters is no secret
_LONG = 8  # what has fewer is one as a whole word only
_KEPT = 256  # a token that is renewed every hour fills them in ten days
_SHARED = 3  # characters that forms share in the pattern
_UNQUOTED = frozenset(string.ascii_letters + string.digits)

_known: dict[str, None] = {}
_known_forms: re.Pattern[str] | None = None
_longest_form = 0


def hide(secret: str | None) -> None:
    """Have every text from now on shown without `secret`, also where it is base64 or URL-encoded.

    Example:
        >>> from torchdata_ais.redaction import clean
        >>> hide("correct-horse")
        >>> clean("the server said: no user me:correct-horse, bWU6Y29ycmVjdC1ob3JzZQ== or correct%2Dhorse")
        'the server said: no user me:***, bWU6*** or ***'
    """
    global _known_forms, _longest_form  # noqa: PLW0603 - one set for the process, see above
    if not secret or len(secret) < SHORT or next(reversed(_known), None) == secret:
        return
    _known.pop(secret, None)
    _known[secret] = None
    while len(_known) > _KEPT:
        del _known[next(iter(_known))]
    _known_forms = None  # made when it is needed
    _longest_form = max(len(form) for one in _known for form in (one, *_forms(one), *_base64(one)))


def _is_word(secret: str) -> bool:
    """Whether a secret is hidden only where it stands alone: it may be a part of other words."""
    if len(secret) < _LONG:
        return len(secret) >= SHORT and any(c.isdigit() for c in secret)  # "test" is said for other reasons
    return secret.isalpha() and secret.islower()


def pattern_of(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern for all forms of some secrets; the longest first."""
    encoded: set[str] = set()
    plain: set[str] = set()
    words: list[str] = []
    for secret in secrets:
        if len(secret) >= _LONG:
            encoded.update(_base64(secret))
            plain.update(_forms(secret))
        if _is_word(secret):
            plain.discard(secret)
            words.append(secret)
    forms = [(form, r"[\w+/\-]{0,2}={0,2}") for form in encoded]
    forms += [(form, "") for form in sorted(plain, key=len, reverse=True)]
    parts = [_by_beginning(forms)] if forms else []
    if words:
        parts.append(rf"(?<![^\W_])(?:{_by_beginning([(word, '') for word in words])})(?![^\W_])")
    return re.compile("|".join(parts)) if parts else None


def _by_beginning(forms: list[tuple[str, str]], at: int = 0) -> str:
    """Return a pattern for texts, each with what may follow it; those that begin alike share the beginning.

    Without that, all forms of all secrets would be tried at each character of a text.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for form in forms:
        groups.setdefault(form[0][at : at + 1], []).append(form)
    parts = []
    for first, some in groups.items():
        if len(some) == 1 or not first or at == _SHARED:
            parts += [re.escape(text[at:]) + after for text, after in some]
        else:
            parts.append(f"{re.escape(first)}(?:{_by_beginning(some, at + 1)})")
    return "|".join(parts)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as servers and libraries may quote it."""
    raw = secret.encode("utf-8", "surrogateescape")
    yield from (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
    yield from (secret.encode("unicode_escape").decode(), raw.hex(), raw.hex().upper())
    for form in ("%%%02x", "%%%02X"):
        yield "".join(chr(byte) if chr(byte) in _UNQUOTED else form % byte for byte in raw)


def _base64(secret: str) -> Iterator[str]:
    """Yield a secret in base64: three forms, as it may begin at any byte of three."""
    raw = secret.encode("utf-8", "surrogateescape")
    for before in range(3):
        for encode in (b64encode, urlsafe_b64encode):
            text = encode(bytes(before) + raw).decode()
            form = text[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
            if len(form) >= _LONG:
                yield form


def longest_form() -> int:
    """Return the characters of the longest form of a known secret."""
    return _longest_form


def without_known(text: str) -> str:
    """Return `text` without them."""
    global _known_forms  # noqa: PLW0603 - see `hide`
    if not _known:
        return text
    forms = _known_forms
    if forms is None:
        forms = _known_forms = pattern_of(list(_known))
    return forms.sub(MASK, text) if forms is not None else text
