"""Redaction of secrets and control characters.

Every error of this package and every line of its log passes `clean`. Two things are removed: texts that look like a
secret (user information of URLs, signed queries, headers), and known secrets (`known_secrets`).

The time is linear in the text, for any author: no pattern scans the same characters from many starts. `clean` reads
only the text that it shows and the length of one secret.

They are kept for the process: an error is built far from the options.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
SHORT = 4  # shorter texts are not secrets
_LONG = 8  # shorter secrets are hidden only as whole words
_KEPT = 256  # a token that is renewed every hour fills them in ten days
_SHARED = 3  # characters that forms share in the pattern
_UNQUOTED = frozenset(string.ascii_letters + string.digits)

_known: dict[str, None] = {}
_known_forms: re.Pattern[str] | None = None
_longest_form = 0


def hide(secret: str | None) -> None:
    """Hide `secret` in every text from now on.

    Its base64 and URL-encoded forms are hidden, too.

    Example:
        >>> from torchdata_ais.errors.redaction import clean
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
    """Return whether a secret is hidden only as a whole word."""
    if len(secret) < _LONG:
        return len(secret) >= SHORT and any(c.isdigit() for c in secret)  # "test" occurs for other reasons
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
    """Return a pattern for texts, each with its possible continuations.

    Texts with the same beginning share it. Otherwise all forms of all secrets would be tried at each character.
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
    """Yield the three base64 forms of a secret, one for each byte offset."""
    raw = secret.encode("utf-8", "surrogateescape")
    for before in range(3):
        for encode in (b64encode, urlsafe_b64encode):
            text = encode(bytes(before) + raw).decode()
            form = text[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
            if len(form) >= _LONG:
                yield form


def without_known(text: str) -> str:
    """Return `text` without them."""
    global _known_forms  # noqa: PLW0603 - see `hide`
    if not _known:
        return text
    forms = _known_forms
    if forms is None:
        forms = _known_forms = pattern_of(list(_known))
    return forms.sub(MASK, text) if forms is not None else text


LONGEST = 8000  # characters that `clean` shows of a text
_OVERLAP = 4096  # characters after those that are shown: a secret that begins among them may end there
_SUFFIX = 40  # characters that say how long the text was
_LEVELS = 3  # encodings within each other that are decoded
_MOST_VALUES = 64  # secrets in one URL

# Names of parameters. The first hold for any name with such a part, the second for names that have it as a word.
_SECRET_PART = re.compile(
    r"token(?!iz|s\b)|secret|passw|passphrase|pwd|credential|signature|signing|key(?!word|frame)|auth(?!or(?!iz))"
    r"|jwt|bearer|cookie|session|assertion|hmac|accessid|ticket"
)
_SECRET_WORD = re.compile(
    r"(?:^|[^a-z])(?:sig|sign|pass|pw|pin|code|otp|sas|hdnea|hdnts|hdntl|gda|upt|verify|md5|ak|secure)(?:[^a-z]|$)"
)
_SECRET_VENDOR = re.compile(r"^(?:x|q)-(?:amz|goog|oss|cos|obs|tos|bce|ms|ak|sign|key)-?")
# In running text, where no syntax marks a parameter, only these.
_PLAIN_NAME = re.compile(
    r"(?i)^[\w.\-]*(?:token(?!iz|s\b)|secret|passw(?:or)?d|passphrase|credential|signature|jwt|api[_-]?key|access[_-]?key"
    r"|authorization|hdnea|hdnts|hdntl|\bsig)[\w.\-]*$"
)
_FILE_NAME = re.compile(r"\.(?:tar(?:\.\w+)?|tgz)$")

_RUN = re.compile(r"[^\s\"'<>`|]+")
_QUOTED = {
    code: quote(chr(code))
    for code in [*map(ord, "\"'<>`|"), *(code for code in range(0x3001) if chr(code).isspace())]
}
_TAIL = ".,;:)]}"
_CUT = re.compile(r"([?&#]|;(?=[\w.%\-]+=))")
_KEYLESS = re.compile(r"^[\w\-.~%+]{16,}$")
_PATH_PAIR = re.compile(r"(?<![^/(\[{,])([\w.\-]+)=([^/]+)")
_ORACLE = re.compile(r"(/p/)[^/]{16,}(/n/[^/]+/b/)")
# User information with / ? or # in it, which ends the host for a parser; then the proper kind; then a host forgotten.
# A run of slashes is one start: with each slash as a start the time would be quadratic.
_BROKEN_USER = re.compile(r"(?<!/)(:?//+)[^/?#@:\[\]]*:(?!\d{1,5}(?:[/?#,;)]|$))\S*(?:@|%40)")
_USER = re.compile(r"((?<![\w/])//+|(?<=\w/)//+|:/+)(?=[^/?#])[^/?#]+(?:@|%40)")
_USER_ALONE = re.compile(
    r"(?<!/)(:?//+[^/?#@:\[\]]*:)(?!\d{1,5}(?:[/?#,;)]|$)|:|port\b|\{|\*|$)[^/?#:]+(?=[/?#]|$)"
)
# A blank in a password, in running text.
_SPACED_USER = re.compile(
    r"(?<!/)(//+)[^\s/?#@:\[\]]+:(?!\d{1,5}(?:[\s/?#,;.)]|$))[^\s/?#@\"']*[ \t][^/?#@\n\"']*@"
)
_NO_SCHEME = re.compile(r"^[^/:@]+:[^/@]*@(?=[\w\[])")
_ENCODED_URL = re.compile(r"(?i)%3a%2f%2f")
_HEADER_VALUE = re.compile(
    r"(?<![\w-])([\w-]+)[\"']?\s*[:=]\s*[\"']?(?!(?i:bearer)\b|(?i:basic)\b|\*)(?=[^\s\"',;]{8})"
)
_VALUE = re.compile(r"[^\s\"',;]+")
_HEADER_NAME = re.compile(r"\b(?:authorization|cookie)\Z|\bx-[\w-]*(?:token|key|secret)\Z", re.IGNORECASE)
_DOTTED = re.compile(r"(?<![\w\-])[\w\-]+\.[\w\-]+(?:\.[\w\-]*)*")
_TOKEN_HEAD = re.compile(r"\beyJ[\w\-]{5,}\Z")
_HEADERS = (
    re.compile(r"(?i)(\bbearer(?:\s+|%20|\+))(?!tokens?\b|auth\w*|is\b|realm\b|error\b|\*)[^\s\"',;)]{4,}"),
    re.compile(r"((?i:\bbasic\s+))(?=[a-zA-Z+/]*[0-9A-Z=])[A-Za-z0-9+/\-_]{6,}=*"),
    re.compile(
        r"(?i)([\"'][\w.\-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key)[\"']\s*:\s*[\"'])"
        r"(?!\*)[^\"']+"
    ),
    re.compile(r"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
)

# Words of a command. Only words that match one of these are shown.
_PROGRAM = re.compile(r"[\w./+~\-]+")
_OPTION = re.compile(r"-[A-Za-z]|--[A-Za-z][\w\-]*")
_ASSIGNED = re.compile(r"(-{0,2}[A-Za-z_][\w.\-]*)=([^=].*)", re.DOTALL)
_WHOLE_URL = re.compile(r"[A-Za-z][\w+.\-]*://\S+")
_ARCHIVE = re.compile(r"[\w./+,=%~\-]*\.(?:tar(?:\.\w+)?|tgz)")
_QUERY = re.compile(r"[?#].*")
_LONGEST_WORD = 4096  # longer ones are hidden: the time stays linear in the text
_LONGEST_COMMAND = 1 << 16
_NAME_END = re.compile(r"[\s:=]+")
_SIMPLE = re.compile(r"(?:~|\.{0,2})/[\w./+%~\-]*|[\w./+%~\-]{1,15}")

_SUSPECT = re.compile(
    r"[@=?#%]|//|eyJ|AKIA|ASIA|(?i:bearer|basic|authorization|cookie|token|secret|passw|key)"
)

# C0 without tab and line feed, C1, marks of text direction, line separators, and lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)

_PLAIN = (str, bytes, int, float, list, type(None))  # lists are notes


def clean(text: str) -> str:
    """Return `text` for people: printable, shortened, and without secrets."""
    return printable(shortened(text))


def shortened(text: str) -> str:
    """Return `text` without secrets, at most `LONGEST` characters of it.

    No secret is shown in part at the cut: the search covers the shown text and the length of one secret more.

    Example:
        >>> len(shortened("x " * 100_000)) < LONGEST + 40
        True
    """
    if len(text) <= LONGEST + _SUFFIX:  # already shortened texts, too
        return redact_text(text)
    overlap = max(_OVERLAP, _longest_form)
    shown = redact_text(text[: LONGEST + overlap])
    if len(text) > LONGEST + overlap:
        shown = shown[:-overlap]  # a secret that is cut off is not recognised
    return f"{shown[:LONGEST]}... ({len(text)} characters)"


def printable(text: str) -> str:
    r"""Return `text` with control characters for terminals spelled out.

    Tab and line feed stay.

    Example:
        >>> printable("a\x1b]0;owned\x07\tb")
        'a\\x1b]0;owned\\x07\tb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def redact(url: str) -> str:
    """Return one URL, path or address without secrets.

    The text may be broken in any way. Removed are user information, and the values of parameters, in query and
    fragment, that are named like secrets or that signed URLs carry.

    Example:
        >>> redact("https://me:secret@h/x?X-Amz-Signature=abc&provider=aws")
        'https://***@h/x?X-Amz-Signature=***&provider=aws'
        >>> redact("htps://me:p@ss/word@h/s.tar?sv=2024-11-04&sig=abc%3D#access_token=x")
        'htps://***@h/s.tar?sv=2024-11-04&sig=***#access_token=***'
    >>> redact("pipe:curl -u me:a1b2 https://h/s.tar?sig=abc")
    "pipe:curl -u '***' 'https://h/s.tar?***'"
    """
    if url.startswith("pipe:"):
        return f"pipe:{_redacted_pipe(url.removeprefix('pipe:'))}"
    if not _SUSPECT.search(url):
        return without_known(url)
    url = redact_text(url)
    whole = url.translate(_QUOTED)  # one run, whatever it contains
    shown = redact_text(whole)
    return url if shown == whole else shown


def _redacted_pipe(command: str) -> str:
    if len(command) > _LONGEST_COMMAND:
        return MASK
    try:
        return redact_command(shlex.split(command))
    except ValueError:  # a quote that is not closed
        return MASK


def redact_command(words: Sequence[str]) -> str:
    """Return a command for people, without possible secrets.

    The rule is the same for all programs.

    Shown are the program, names of options, URLs without user information and query, names of archives, and arguments
    that are paths or short words. Everything else is hidden: values of options, unless they are URLs or archives, and
    each argument that contains or follows a word such as "token" or "key".

    Example:
        >>> redact_command(["curl", "-sf", "-H", "X-Mine: a1b2", "--oauth2-bearer", "a1b2", "https://me:a1b2@h/s.tar?x=1"])
        "curl '-s***' -H '***' --oauth2-bearer '***' 'https://***@h/s.tar?***'"
        >>> redact_command(["AWS_SECRET_ACCESS_KEY=a1b2", "aws", "s3", "cp", "--profile=lab", "s3://b/s.tar", "-"])
        "'AWS_SECRET_ACCESS_KEY=***' aws s3 cp '--profile=***' s3://b/s.tar -"
    """
    shown: list[str] = []
    before = ""
    for word in words:
        if not before and _PROGRAM.fullmatch(word):
            shown.append(redact(word))
            before = "program"
            continue
        shown.append(
            MASK if _announces_secret(before) else _redacted_word(word, after_option=before.startswith("-"))
        )
        if word.strip("-"):  # "-" and "--" end no option
            before = word
    return shlex.join(shown)


def without_words(words: Sequence[str], text: str) -> str:
    """Return `text` without the words that `redact_command` hides.

    `text` is the output of a command, for example.

    Example:
        >>> without_words(["curl", "-ume:a1b2", "https://h/s.tar"], "no user a1b2 at https://h/s.tar")
        'no user *** at https://h/s.tar'
    """
    shown = shlex.split(redact_command(words))
    values: set[str] = set()
    for word in (word for word in words if word not in shown):
        text = without_values_of(word, text)
        values |= {word, word[2:], *re.split(r"\s", word)[-1:]}
        values |= {
            part.strip() for mark in ":=?" for part in (word.partition(mark)[2], word.rpartition(mark)[2])
        }
    values = {value for value in values if len(value) >= SHORT}
    if pattern := pattern_of(values):  # encoded values, too
        text = pattern.sub(MASK, text)
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def _announces_secret(word: str) -> bool:
    """Return whether the argument after `word` may be a secret."""
    if not word or word.startswith("--no-") or _is_source(word):
        return False
    last = _NAME_END.split(word[-_LONGEST_WORD:])[-1]
    return not last or last.lower() in ("basic", "digest", "negotiate") or _names_secret(last)


def _redacted_word(word: str, *, after_option: bool) -> str:
    if len(word) > _LONGEST_WORD:
        return MASK
    if not word.strip("-") or _OPTION.fullmatch(word):
        return word
    if _is_source(word):
        return _QUERY.sub(f"?{MASK}", redact(word))
    if assigned := _ASSIGNED.fullmatch(word):
        name, value = assigned.groups()
        is_source = _is_source(value) and not _names_secret(name)
        return f"{name}={_redacted_word(value, after_option=True) if is_source else MASK}"
    if word.startswith("-"):
        return word[:2] + MASK
    is_open = not after_option and _SIMPLE.fullmatch(word) and not _names_secret(word)
    return redact(word) if is_open else MASK


def _is_source(word: str) -> bool:
    if (
        len(word) > _LONGEST_WORD
        or word.startswith("-")
        or ("=" in word and "://" not in word and _names_secret(word))
    ):
        return False
    return bool(_WHOLE_URL.fullmatch(word) or _ARCHIVE.fullmatch(word))


def redact_text(text: str, level: int = 0) -> str:
    """Return a longer text, such as a library's message, without secrets.

    Example:
        >>> redact_text("Max retries exceeded with url: /s.tar?sig=abc (Caused by http://me:pw@h: refused)")
        'Max retries exceeded with url: /s.tar?sig=*** (Caused by http://***@h: refused)'
    """
    text = without_known(text)
    if not _SUSPECT.search(text):
        return text
    for header in _HEADERS:
        text = header.sub(rf"\1{MASK}", text)
    text = _redacted_headers(text)
    if "eyJ" in text:
        text = _DOTTED.sub(_redacted_token, text)
    text = _SPACED_USER.sub(rf"\1{MASK}@", text)
    return _RUN.sub(lambda found: _redacted_run(found[0], level), text)


def _redacted_headers(text: str) -> str:
    """Redact values of headers that hold secrets.

    A value of another name may itself be a header.
    """
    parts, at = [], 0
    for found in _HEADER_VALUE.finditer(text):
        if found.start() >= at and _HEADER_NAME.search(found[1]):
            value = _VALUE.match(text, found.end())
            parts += [text[at : found.end()], MASK]
            at = value.end() if value else found.end()
    return "".join([*parts, text[at:]]) if parts else text


def _redacted_token(found: re.Match[str]) -> str:
    """Redact a JSON web token: from the part on that begins as one."""
    parts = found[0].split(".")
    for number, part in enumerate(parts[:-1]):
        head = _TOKEN_HEAD.search(part)
        if head and parts[number + 1]:
            return ".".join([*parts[:number], part[: head.start()] + MASK])
    return found[0]


def without_values_of(url: str, text: str) -> str:
    """Return `text` without the secrets that `url` contains.

    `text` is the answer to a request for `url`, for example.

    Example:
        >>> without_values_of("http://h/s.tar?sig=a1b2c3d4&sv=1", "the signature a1b2c3d4 of version 1 has expired")
        'the signature *** of version 1 has expired'
    """
    values = [
        unquote(part.partition("=")[2]) for part in _CUT.split(url) if _is_secret(*part.partition("=")[::2])
    ]
    _, at, _ = (login := url.partition("//")[2].partition("/")[0]).rpartition("@")
    if at:
        values += [unquote(part) for part in login.rpartition("@")[0].split(":", 1)[-1:]]
    if len(values) > _MOST_VALUES:
        return MASK
    pattern = pattern_of(values)
    return pattern.sub(MASK, text) if pattern else text


def _redacted_run(run: str, level: int) -> str:
    """Redact the text between two spaces or quotes."""
    if not ("@" in run or "=" in run or "//" in run or "?" in run or "#" in run or "%" in run or ":/" in run):
        return run
    if _ENCODED_URL.search(run) and "://" not in run:
        plain = unquote(run)
        shown = redact_text(plain, level)  # which has ://
        return run if shown == plain else shown
    whole, run = run, run.rstrip(_TAIL)
    tail = whole[len(run) :]
    if "//" in run or ":/" in run:
        # Up to the last @: after it the pattern would scan from each start to the end.
        end = max(run.rfind("@") + 1, run.rfind("%40") + 3 * ("%40" in run))
        run = _BROKEN_USER.sub(rf"\1{MASK}@", run[:end]) + run[end:]
        run = _USER.sub(rf"\1{MASK}@", run)
        run = _USER_ALONE.sub(rf"\1{MASK}", run)
        run = _ORACLE.sub(rf"\1{MASK}\2", run)
    elif ":" in run and "@" in run:
        run = _NO_SCHEME.sub(f"{MASK}@", run)
    return _redacted_parameters(run, level) + tail


def _redacted_parameters(run: str, level: int) -> str:
    """Redact values of ``name=value`` after ``? & # ;``.

    In the path, values with an unmistakable name are redacted.
    """
    first, *rest = _CUT.split(run)
    if "=" in first:
        if rest and rest[0] == "&" and "/" not in first:
            rest = ["", first, *rest]  # a query without its URL
            first = ""
        else:
            first = _PATH_PAIR.sub(
                lambda pair: f"{pair[1]}={MASK}" if _PLAIN_NAME.match(pair[1]) else pair[0], first
            )
    parts = [first]
    is_url = "//" in first or first.startswith("/")
    hidden = False
    for mark, part in zip(rest[::2], rest[1::2], strict=True):
        name, equals, value = part.partition("=")
        if equals:
            hidden = _is_secret(name, value, level)
            part = f"{name}={MASK}" if hidden else part  # noqa: PLW2901
        elif part and (hidden or (is_url and mark in "?#" and _KEYLESS.match(part))):
            part = MASK  # noqa: PLW2901 - the rest of a value with a # in it, or a query that is nothing but a token
        parts += [mark, part]
    return "".join(parts)


def _is_secret(name: str, value: str, level: int = 0) -> bool:
    """Return whether the value of a parameter must be hidden."""
    if not value or value == MASK:
        return False
    if unquote(name).lower() == "key" and _FILE_NAME.search(value):
        return False  # of the object
    if _names_secret(name):
        return True
    inner = unquote(value)  # a URL, or JSON, as the value
    if inner == value or len(inner) <= SHORT:
        return False
    return level >= _LEVELS or redact_text(inner, level + 1) != inner


def _names_secret(name: str) -> bool:
    """Return whether a value with this name must be hidden."""
    word = unquote(name).lower()
    return bool(_SECRET_PART.search(word) or _SECRET_WORD.search(word) or _SECRET_VENDOR.search(word))


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def quiet(error: BaseException | None) -> BaseException | None:
    """Return `error`, for ``raise ... from``, or only its text.

    It is the text if the error or its cause could show a secret: those of HTTP libraries hold headers of requests.
    """
    for one in with_causes(error):
        held = [value for value in vars(one).values() if not isinstance(value, _PLAIN)]
        if held or any(redact_text(text) != text for text in (str(one), repr(one), str(vars(one)))):
            return RuntimeError(clean(f"{type(error).__module__}.{type(error).__qualname__}: {error}"))
    return error


def sealed(error: Exception) -> Exception:
    """Return `error`, with its cause made `quiet`."""
    hidden = error.__suppress_context__
    error.__cause__ = quiet(error.__cause__ if hidden else error.__cause__ or error.__context__)
    error.__context__ = None
    return error


class RedactingFilter(logging.Filter):
    """Has a logger write no secrets and no control characters."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record's text where that is needed; never drop it."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            return True  # logging itself reports what is wrong with the call
        shown = clean(text)
        if shown != text:
            record.msg, record.args = shown, ()
        return True
