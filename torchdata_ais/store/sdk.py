"""The AIStore SDK, held at arm's length: imported when needed, with our retries, errors in our words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torchdata_ais.errors import AuthError, ConnectError, ReadError, StallError
from torchdata_ais.redaction import quiet
from torchdata_ais.store.attempts import Failed, retried
from torchdata_ais.store.options import StoreOptions
from torchdata_ais.store.pools import proxy_for
from torchdata_ais.store.tokens import basic
from torchdata_ais.store.wire import message_in, refusal, root

__all__ = ["call", "call_once", "sdk_client"]

_T = TypeVar("_T")


class _Login:
    """Signs requests of a ``requests`` session, which takes the header away before it follows a redirect elsewhere."""

    def __init__(self, name: str, password: str) -> None:
        self._value = basic(name, password)

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = self._value
        return request


@contextmanager
def sdk_client(options: StoreOptions) -> Iterator[Any]:
    """Give an SDK client for `options` that tries each request once; it is closed afterwards.

    The SDK's own retries wait for minutes against an endpoint that is not there, and repeat requests to a
    node that is gone; `call` repeats them by the policy of `options` instead.
    """
    from aistore.sdk import Client
    from aistore.sdk.retry_config import RetryConfig
    from tenacity import Retrying, stop_after_attempt
    from urllib3 import Retry

    once = RetryConfig(
        http_retry=Retry(0, redirect=5, raise_on_status=False),
        network_retry=Retrying(stop=stop_after_attempt(1), reraise=True),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that skip_verify is insecure was the user's decision
        client = Client(
            str(options.endpoint),
            skip_verify=options.skip_verify,
            ca_cert=options.ca_cert,
            client_cert=options.client_cert,
            timeout=(options.connect_timeout or 0, options.first_byte_timeout or 0),
            retry_config=once,
            token=options.token,
            max_pool_size=options.pool_size,
        )
    # Where we have none, the SDK would take that of the environment, as it stands there.
    client._request_client.token = options.token
    session = client._request_client.session_manager.session
    if options.login:
        session.auth = _Login(*options.login)
    # With its trust in the environment, requests would let REQUESTS_CA_BUNDLE override ca_cert.
    session.trust_env = False
    proxy = proxy_for(options.endpoint)
    session.proxies = {"http": proxy, "https": proxy} if proxy else {}
    try:
        yield client
    finally:
        session.close()


def call(function: Callable[[], _T], options: StoreOptions, name: str, url: str) -> _T:
    """Return ``function()``, which uses the SDK, repeated as the retry policy says.

    Args:
        function: Makes one request.
        options: Retry policy; endpoint and token for the messages.
        name: What is asked for, for the messages.
        url: The place named in errors.
    """

    def once(_: object) -> _T:
        with _translated(options):
            return function()

    return retried(once, options.retry, name, url)


def call_once(function: Callable[[], _T], options: StoreOptions, name: str) -> _T:
    """Return ``function()``, which uses an SDK client of the program's, with its errors in our words.

    Args:
        function: Makes requests, with the retries of that client.
        options: Endpoint and token for the messages.
        name: What is asked for, for the messages.
    """
    try:
        with _translated(options):
            return function()
    except Failed as caught:
        failed = caught
    raise failed.kind.at(f"{name}: {failed.what}", todo=failed.todo) from quiet(failed.__cause__)


@contextmanager
def _translated(options: StoreOptions) -> Iterator[None]:
    """Turn what the SDK raises into `Failed`."""
    import requests
    from aistore.sdk.errors import APIRequestError

    where = options.endpoint or "the cluster"
    check = "check that the cluster is up and that endpoint= or AIS_ENDPOINT is right"
    try:
        yield
    except APIRequestError as error:
        failed = refusal(error.status_code, message_in(str(error.message)), options)
        raise failed from error
    except requests.exceptions.SSLError as error:
        todo = "check ca_cert= (AIS_CLIENT_CA) and that the endpoint speaks https"
        raise Failed(ConnectError, f"TLS with {where} failed: {root(error)}", todo, again=False) from error
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        raise Failed(ConnectError, f"no usable address {where}: {error}", check, again=False) from error
    except requests.exceptions.ReadTimeout as error:
        raise Failed(StallError, f"{where} sent no answer in time", "look at its load") from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise Failed(ReadError, f"the answer of {where} broke off", "look at its log") from error
    except requests.exceptions.ConnectionError as error:
        raise Failed(ConnectError, f"no connection to {where}: {root(error)}", check) from error
    except (requests.exceptions.InvalidHeader, UnicodeError) as error:
        todo = "give the client its token as one line of Latin-1"
        raise Failed(
            AuthError, "the token of the client cannot be sent in a header", todo, again=False
        ) from error
    except requests.exceptions.RequestException as error:
        raise Failed(ReadError, f"{where}: {error}", check, again=False) from error
    except ValueError as error:  # the decoders of the SDK
        what = f"the answer of {where} is not AIStore's ({type(error).__name__})"
        raise Failed(ReadError, what, check, again=False) from error
