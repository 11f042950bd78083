"""The AIStore SDK over the connections of this package.

The timeouts of `requests` count from byte to byte, and it reads a body of any length. Here the socket is known to the
`Cancel` of the thread, which ends overdue requests, and a body has a limit. Answers that cannot be AIStore's are
refused before the SDK decodes them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from typing import Any, NamedTuple, TypeVar

import msgspec

from torchdata_ais.errors import AISError, AuthError, ConnectError, ReadError, StallError, UsageError
from torchdata_ais.errors.redaction import quiet
from torchdata_ais.store.objects.sdk_names import api_error, client_of, namespace_of, session_of
from torchdata_ais.store.transport.attempts import Attempts, Cancelled, Failed, series
from torchdata_ais.store.transport.body import WholeBody
from torchdata_ais.store.transport.exchange import (
    CHECK_TLS,
    UNREADABLE,
    check_kind,
    check_length,
    message_in,
    not_aistore,
    refusal,
    refused,
    root,
)
from torchdata_ais.store.transport.framing import let_go
from torchdata_ais.store.transport.options import StoreOptions, TokenSource, basic
from torchdata_ais.store.transport.pools import proxy_for
from torchdata_ais.store.transport.request import send_message
from torchdata_ais.urls import Location, redact

_T = TypeVar("_T")
_BUCKET = re.compile(r"[A-Za-z0-9_.-]+")
_UNAUTHORIZED = 401
_JOB_ID = re.compile(r"[\w.@:+-]{1,200}")


def _signing(value: Callable[[], str]) -> Callable[[Any], object]:
    """Return the authentication of a ``requests`` session.

    The session removes the header before it follows a redirect to another host.
    """

    def sign(request: Any) -> object:
        request.headers["Authorization"] = value()
        return request

    return sign


@contextmanager
def sdk_client(options: StoreOptions) -> Iterator[Any]:
    """Give an SDK client for `options` that tries each request once.

    It is closed afterwards. The SDK's own retries wait for minutes for a missing endpoint, and repeat requests to a
    node that is gone. `call` repeats them by the policy of `options` instead.
    """
    from torchdata_ais.store.objects.sdk_adapter import BoundedAdapter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that skip_verify is insecure was the user's decision
        client = client_of(
            str(options.endpoint),
            options.bearer,
            skip_verify=options.skip_verify,
            ca_cert=options.ca_cert,
            client_cert=options.client_cert,
            timeout=(options.connect_timeout or 0, options.first_byte_timeout or 0),
            max_pool_size=options.pool_size,
        )
    session = session_of(client)
    if isinstance(options.token, TokenSource):
        session.auth = _signing(lambda: f"Bearer {options.bearer}")
    if options.login:
        login = basic(*options.login)
        session.auth = _signing(lambda: login)
    # With its trust in the environment, requests would let REQUESTS_CA_BUNDLE override ca_cert.
    session.trust_env = False
    proxy = proxy_for(options.endpoint)
    session.proxies = {"http": proxy, "https": proxy} if proxy else {}
    session.headers["Accept-Encoding"] = "identity"
    for scheme in ("http://", "https://"):
        session.mount(scheme, BoundedAdapter(options))
    try:
        yield client
    finally:
        session.close()


def call(
    function: Callable[[], _T],
    options: StoreOptions,
    name: str,
    url: str,
    *,
    answer_timeout: float | None = None,
) -> _T:
    """Return ``function()``, which uses the SDK, repeated by the retry policy.

    All tries end within its deadline. For what the cluster has to start first, `answer_timeout` replaces the timeout of
    `options` until the answer begins.
    """
    answer_s = answer_timeout or options.first_byte_timeout
    whole_s = None  # an answer has the time of the timeouts together to be there, however its bytes come
    if options.connect_timeout and answer_s and options.stall_timeout:
        whole_s = options.connect_timeout + answer_s + options.stall_timeout
    translated = _translated(options)(function)

    def once(attempts: Attempts) -> _T:
        attempts.expect(attempts.bound(whole_s))
        token = options.bearer
        try:
            result = translated()
        except Failed as failed:
            attempts.expect()
            attempts.check_interrupted(failed)
            if failed.status != _UNAUTHORIZED or not options.renew(token):
                raise
            attempts.expect(attempts.bound(whole_s))
            result = translated()
        attempts.check_interrupted()  # an answer that ends with its connection looks whole
        return result

    with series(options.retry, name, url, host=redact(options.endpoint or "")) as attempts:
        return attempts.run(once)


def check_new_name(place: Location) -> None:
    """Raise `UsageError` for an invalid name: AIStore only answers 400."""
    if place.provider == "ais" and not _BUCKET.fullmatch(place.bucket):
        raise UsageError.at(
            f"no bucket can be called {place.bucket!r}", todo="use letters, digits, -, _ and .", url=place.uri
        )


def make_bucket(client: object, place: Location, options: StoreOptions) -> None:
    """Make the bucket of `place` if it is missing, and one of AIStore itself."""
    if place.provider == "ais":
        bucket, uri = sdk_bucket(client, place), replace(place, name="").uri.rstrip("/")
        call(lambda: bucket.create(exist_ok=True), options, f"bucket {uri}", uri)


def sdk_bucket(client: Any, place: Location) -> Any:
    """Return the SDK's object for the bucket of `place`."""
    return client.bucket(place.bucket, provider=place.provider, namespace=namespace_of(place.namespace))


def job_id_in(text: object, options: StoreOptions) -> str:
    """Return the id of a started job, all of the answer, or raise `Failed`."""
    found = str(text).strip()
    if not _JOB_ID.fullmatch(found):
        raise not_aistore(options.endpoint, f"{found[:40]!r} is no id of a job")
    return found


def call_once(function: Callable[[], _T], options: StoreOptions, name: str) -> _T:
    """Return ``function()``, which uses a client of the user's program.

    SDK errors are raised as errors of this package. It has the retries of that client.
    """
    try:
        with _translated(options):
            return function()
    except Failed as caught:
        failed = caught
    raise failed.kind.at(f"{name}: {failed.what}", todo=failed.todo) from quiet(failed.__cause__)


@contextmanager
def _translated(options: StoreOptions) -> Iterator[None]:
    """Turn exceptions of the SDK into `Failed`."""
    import requests
    from urllib3.exceptions import HTTPError

    where = options.endpoint or "the cluster"
    check = "check that the cluster is up and that cluster= or AIS_ENDPOINT is right"
    try:
        yield
    except (AISError, Failed, Cancelled):  # ours already
        raise
    except api_error() as error:
        failed = refusal(error.status_code, message_in(str(error.message)), options)
        raise failed from error
    except requests.exceptions.SSLError as error:
        todo = CHECK_TLS
        raise Failed(ConnectError, f"TLS with {where} failed: {root(error)}", todo, again=False) from error
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        raise Failed(ConnectError, f"no usable address {where}: {error}", check, again=False) from error
    except requests.exceptions.ReadTimeout as error:
        raise Failed(StallError, f"{where} sent no answer in time", "look at its load") from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise Failed(ReadError, f"the answer of {where} broke off", "look at its log") from error
    except requests.exceptions.ContentDecodingError as error:
        why = "its answer is not encoded as its Content-Encoding says"
        raise not_aistore(options.endpoint, why) from error
    except requests.exceptions.ConnectionError as error:
        raise Failed(ConnectError, f"no connection to {where}: {root(error)}", check) from error
    except (requests.exceptions.InvalidHeader, UnicodeError) as error:
        remedy = "give the client its token as one line of Latin-1"
        raise Failed(
            AuthError, "the token of the client cannot be sent in a header", remedy, again=False
        ) from error
    except requests.exceptions.RequestException as error:
        raise Failed(ReadError, f"{where}: {error}", check, again=False) from error
    except (HTTPError, HTTPException, OSError) as error:
        raise Failed(
            ReadError, f"the answer of {where} broke off: {root(error)}", "look at its log"
        ) from error
    except msgspec.MsgspecError as error:  # the decoders of the SDK
        raise not_aistore(options.endpoint, f"its answer cannot be decoded ({error})") from error
    except (*UNREADABLE, RuntimeError) as error:  # Pydantic's are ValueError, TypeError and RuntimeError
        raise not_aistore(
            options.endpoint, f"its answer cannot be decoded ({type(error).__name__})"
        ) from error


_PIECE = 64 << 10


class Answer(NamedTuple):
    """A successful answer of a cluster."""

    status: int
    kind: str
    body: bytes


def ask(url: str, message: object, options: StoreOptions, attempts: Attempts, *, accept: str) -> Answer:
    """Send ``GET`` with a message in JSON, and return the answer.

    Memory: the answer, 16 MiB at most.

    Raises:
        Failed: None came, or it is not AIStore's.
    """
    response = send_message(url, msgspec.json.encode(message), options, attempts, Accept=accept)
    if not 200 <= response.status < 300:
        raise refused(response, options, attempts)
    body = bytearray()
    try:
        whole = WholeBody(response, options, attempts)
        while piece := whole.take(_PIECE):
            body += piece
            check_length(len(body), options)
    finally:
        let_go(response)
    kind = response.headers.get("Content-Type", "")
    check_kind(kind, body, options)
    return Answer(response.status, kind, bytes(body))
