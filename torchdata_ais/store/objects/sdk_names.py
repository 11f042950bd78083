"""Import of the AIStore SDK.

Differences between versions are handled here. Requests do not use the SDK, since its results change between versions.
`etl.server` has the SDK's server as its base class, and the embedded cluster, which imports nothing else of this
package, returns clients.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib import metadata
from typing import Any

from torchdata_ais._util.versions import OLDEST
from torchdata_ais.errors import MissingLibraryError


def _names(module: str) -> Any:
    """Import a module of the SDK, or raise `MissingLibraryError`."""
    check_version()
    return importlib.import_module(f"aistore.sdk{module}")


@functools.cache
def check_version() -> None:
    """Raise `MissingLibraryError` if the SDK is missing.

    One that is too old is refused when the package is imported.
    """
    try:
        metadata.version("aistore")
    except metadata.PackageNotFoundError as error:
        oldest = ".".join(map(str, OLDEST["aistore"]))
        raise MissingLibraryError.at(
            "the AIStore SDK is not installed", todo=f'install it: pip install "aistore>={oldest}"'
        ) from error


def client_of(endpoint: str, token: str | None = None, **options: object) -> Any:
    """Return a client with these options that tries each request once."""
    from tenacity import Retrying, stop_after_attempt
    from urllib3 import Retry

    once = Retrying(stop=stop_after_attempt(1), reraise=True)
    config = _names(".retry_config").RetryConfig(http_retry=Retry(0), network_retry=once)
    client = _names("").Client(endpoint, token=token, retry_config=config, **options)
    client._request_client.token = token  # or none, not that of the environment
    return client


def session_of(client: Any) -> Any:
    """Return the session of ``requests`` that the client uses in this process."""
    return client._request_client.session_manager.session


def send_by(client: Any, method: str, **request: object) -> Any:
    """Return the answer to a request that the SDK may have no method for."""
    return client._request_client.request(method, **request)


def api_error() -> Any:
    """Return the class of the errors for an answer of the cluster."""
    return _names(".errors").APIRequestError


def namespace_of(text: str) -> Any:
    """Return the namespace ``@uuid#name``, or None."""
    uuid, _, name = text.removeprefix("@").partition("#")
    return _names(".types").Namespace(uuid=uuid, name=name) if text else None


def is_bucket(source: object) -> bool:
    """Return whether `source` is the SDK's bucket, and lists as that does."""
    return _lists_as(source, "", "Bucket")


def is_group(source: object) -> bool:
    """Return whether `source` is an SDK group of objects, listed like one."""
    return _lists_as(source, ".multiobj", "ObjectGroup")


def _lists_as(source: object, module: str, name: str) -> bool:
    if "aistore.sdk" not in sys.modules:  # then none can exist
        return False
    kind = getattr(_names(module), name)
    # A subclass with another listing method is called like any other source.
    return isinstance(source, kind) and type(source).list_urls is kind.list_urls


def etl_config(name: str) -> Any:
    """Return the argument that makes an SDK source apply a transform."""
    return _names(".etl").ETLConfig(name=name)


def etl_payload(server: object) -> str:
    """Return a server class, as it is sent to the cluster."""
    return str(_names(".etl.webserver").serialize_class(server))


def etl_ways() -> tuple[str, ...]:
    """Return the ways in which a transform can speak to the cluster."""
    return tuple(_names(".etl.etl_const").ETL_COMM_OPTIONS)


def etl_seconds(text: str) -> float:
    """Return the seconds of ``5m`` and the like; raises ValueError."""
    return float(_names(".utils").convert_to_seconds(text))
