"""What a command would print: understood from its words, never run."""

from __future__ import annotations

import getopt
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from torchdata_ais.urls import PROVIDERS

logger = logging.getLogger("torchdata_ais")

_WEB = ("http://", "https://")
_OBJECTS = tuple(f"{scheme}://" for scheme in PROVIDERS)
_STDOUT = ("-", "/dev/stdout")


class NotUnderstood(Exception):  # noqa: N818 - becomes part of the sentence of a UsageError
    """Why it is not clear what a command would print."""


@dataclass(frozen=True)
class _Program:
    """A program that prints one source.

    Attributes:
        calls: The words that must stand around the source, without options: ``("s3 cp", "-")``.
        schemes: How its source begins; nothing for a local file.
        short: Its options of one letter that do not change what is printed, as `getopt` wants them.
        long: Its long ones; with ``=`` where a value follows.
        output: Options that must be there, with ``-`` as their value, for anything to be printed.
        elsewhere: Options that say how to reach the store, which AIStore decides for itself.
    """

    calls: tuple[tuple[str, str], ...]
    schemes: tuple[str, ...]
    short: str = ""
    long: str = ""
    output: tuple[str, ...] = ()
    elsewhere: str = ""


_PROGRAMS = {
    "cat": _Program((("", ""),), (), "u"),
    "curl": _Program(
        (("", ""),),
        _WEB,
        "sSLfkgN#46m:Y:y:A:e:o:X:",
        "silent show-error location fail fail-with-body fail-early insecure globoff no-buffer progress-bar ipv4 ipv6"
        " compressed http1.0 http1.1 http2 http2-prior-knowledge tcp-nodelay no-keepalive no-progress-meter"
        " retry-connrefused retry-all-errors retry= retry-delay= retry-max-time= connect-timeout= max-time="
        " speed-limit= speed-time= limit-rate= keepalive-time= max-redirs= user-agent= referer= cacert= capath="
        " output= request=",
    ),
    "wget": _Program(
        (("", ""),),
        _WEB,
        "qnvcO:t:T:w:U:46",
        "quiet no-verbose continue tries= timeout= connect-timeout= read-timeout= dns-timeout= wait= waitretry="
        " limit-rate= retry-connrefused no-check-certificate ca-certificate= user-agent= no-cache show-progress"
        " inet4-only inet6-only max-redirect= output-document=",
        ("-O", "--output-document"),
    ),
    "aws": _Program(
        (("s3 cp", "-"),),
        ("s3://",),
        "",
        "debug no-verify-ssl no-paginate no-cli-pager no-cli-auto-prompt output= query= color= cli-read-timeout="
        " cli-connect-timeout= cli-binary-format= ca-bundle= quiet only-show-errors no-progress page-size="
        " expected-size= ignore-glacier-warnings force-glacier-transfer no-guess-mime-type checksum-mode="
        " progress-frequency= progress-multiline v2-debug endpoint-url= profile= region= source-region="
        " no-sign-request request-payer=",
        elsewhere="endpoint-url profile region source-region no-sign-request request-payer",
    ),
    "s5cmd": _Program(
        (("cat", ""),),
        ("s3://",),
        "r:",
        "log= numworkers= retry-count= no-verify-ssl endpoint-url= profile= credentials-file="
        " no-sign-request request-payer= use-list-objects-v1 concurrency= part-size=",
        elsewhere="endpoint-url profile credentials-file no-sign-request request-payer",
    ),
    "gsutil": _Program((("cat", ""), ("cp", "-")), ("gs://",), "qmDo:u:i:", elsewhere="u i"),
    "gcloud": _Program(
        (("storage cat", ""), ("storage cp", "-")),
        ("gs://",),
        "q",
        "quiet no-user-output-enabled user-output-enabled verbosity="
        " project= account= billing-project= configuration= impersonate-service-account= access-token-file=",
        elsewhere="project account billing-project configuration impersonate-service-account access-token-file",
    ),
    "ais": _Program(
        (("get", "-"), ("get", ""), ("object get", "-"), ("object cat", ""), ("cat", "")),
        _OBJECTS,
        "",
        "silent quiet yes refresh= progress no-color",
    ),
}


def source_of(command: str) -> str:
    """Return the file, web page or object that a command would print.

    Raises:
        NotUnderstood: It is not clear that it prints one source, all of it, and what that is.

    Example:
        >>> source_of("aws --profile lab s3 --cli-connect-timeout 0 cp s3://b/s.tar -")
        's3://b/s.tar'
        >>> source_of("curl -sSfL --retry 5 'https://h/s.tar?x=1&y=2' || true")
        'https://h/s.tar?x=1&y=2'
    """
    words = _words(command)
    program = _PROGRAMS.get(words[0]) if words else None
    if program is None:
        known = ", ".join(_PROGRAMS)
        raise NotUnderstood(f"it does not begin with one of {known}")
    name, *rest = words
    try:
        options, around = getopt.gnu_getopt(rest, program.short, program.long.split())
    except getopt.GetoptError as error:
        raise NotUnderstood(f"what {name} prints with it is not known: {error}") from None
    _check_options(name, program, options)
    for before, after in program.calls:
        first, last = before.split(), after.split()
        source = around[len(first) : len(around) - len(last)]
        ends = around[len(around) - len(last) :]
        right = around[: len(first)] == first and (not last or (ends and ends[0] in _STDOUT))
        if right and len(source) == 1 and _is_source(source[0], program.schemes):
            return source[0]
    raise NotUnderstood(f"it should read `{_usual(name, program)}`")


def _words(command: str) -> list[str]:
    """Return the words of a command; operators of the shell outside of quotes are words of their own."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError as error:  # quotes that do not match
        raise NotUnderstood(str(error).lower()) from None
    if words[-2:] == ["||", "true"]:  # hides errors: they are shown here
        words = words[:-2]
    if words[-3:] == ["2", ">", "/dev/null"]:
        words = words[:-3]
    for word in words:
        if set(word) <= set("();<>|&") and word:
            raise NotUnderstood(f"it needs a shell for {word!r}; an address with that sign stands in quotes")
        if sign := set("$`") & set(word):  # the word itself may hold a secret
            raise NotUnderstood(f"it needs a shell for {sign.pop()!r}")
    return words


def _check_options(name: str, program: _Program, options: Sequence[tuple[str, str]]) -> None:
    given = dict(options)
    for option in ("-o", "--output") if name == "curl" else program.output:
        if given.get(option, "-") not in _STDOUT:
            raise NotUnderstood(f"{option} writes to a file")
    if name == "curl" and (given.get("-X") or given.get("--request") or "GET") != "GET":
        raise NotUnderstood("it is no GET request")
    if program.output and not given.keys() & set(program.output):
        raise NotUnderstood(f"without {program.output[0]} - it prints nothing")
    elsewhere = [option for option in given if option.lstrip("-") in program.elsewhere.split()]
    if elsewhere:
        logger.info("%s of %s have no effect: AIStore reads the bucket as it is configured", elsewhere, name)


def _is_source(word: str, schemes: tuple[str, ...]) -> bool:
    if schemes:
        return word.startswith(schemes) and word.partition("://")[2] != ""
    return word not in _STDOUT and not set(word) & set("*?~{}[\\\n")


def _usual(name: str, program: _Program) -> str:
    before, after = program.calls[0]
    source = f"{program.schemes[0]}..." if program.schemes else "FILE"
    return " ".join(filter(None, [name, before, source, after]))
