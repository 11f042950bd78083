"""Commands as they may be shown: without what looks like a secret in their words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchdata_ais.urls import redact

_TELLING = "(token|secret|passw|credential|authorization|signature|api-?key)[^:=]*"


_NAMED_SECRET = re.compile(f"(?is).*?{_TELLING}[:=]")


_SECRET_OPTION = re.compile(f"(?is)-[^:=]*?{_TELLING}$")


_OF_CURL = ("-u", "-U", "-b", "--user", "--proxy-user", "--cookie", "--oauth2-bearer")


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words without the value of what is named like a secret, and without those that `redact` knows."""
    kept: list[str] = []
    for word in words:
        before = kept[-1] if kept else ""
        # No pattern scans a word to its end from many starts: the first stops at the last sign, the other has none.
        last = max(word.rfind(":"), word.rfind("=")) + 1
        if before in _OF_CURL or ({":", "="}.isdisjoint(before) and _SECRET_OPTION.match(before)):
            kept.append("***")
        elif before in ("-H", "--header"):
            kept.append(word.partition(":")[0] + ":***")
        elif re.match("-[uUbH].", word):
            kept.append(word[:2] + "***")
        elif (named := _NAMED_SECRET.match(word, 0, last)) and not re.match(r"\w+://", word):
            kept.append(named[0] + "***")
        else:
            kept.append(redact(word))
    return kept
