"""The address of a cluster, and the user name and password that belong to it."""

from __future__ import annotations

import re
from base64 import b64encode
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from torchdata_ais.errors import UsageError
from torchdata_ais.known_secrets import hide
from torchdata_ais.urls import redact


class Endpoint(str):
    """The address of a cluster, ``http://host:51080``, without the user name and password that belong to it.

    They are kept beside it, so that no URL, message or `repr` made of the address has them.

    Attributes:
        login: User name and password for the address itself, for no other host; or None.

    Example:
        >>> endpoint = Endpoint("http://h:51080", ("me", "pass"))
        >>> endpoint, endpoint.login
        ('http://h:51080', ('me', 'pass'))
    """

    __slots__ = ("login",)

    login: tuple[str, str] | None

    def __new__(cls, address: str, login: tuple[str, str] | None = None) -> Self:
        """Return `address` with its login."""
        self = super().__new__(cls, address)
        self.login = login
        hide(login[1] if login else None)
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, str] | None]]:
        return type(self), (str(self), self.login)


def login_in(text: str) -> tuple[str, str]:
    """Return user name and password of what stands before the ``@`` of an address.

    Example:
        >>> login_in("me:p%40ss")
        ('me', 'p@ss')
    """
    name, _, password = text.partition(":")
    return unquote(name), unquote(password)


def basic(name: str, password: str) -> str:
    """Return the value of the header for a user name and password.

    Example:
        >>> basic("me", "pass")
        'Basic bWU6cGFzcw=='
    """
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


def clean_endpoint(endpoint: str) -> Endpoint:
    """Return the address without what may be left out at its end.

    Raises:
        UsageError: It is none.
    """
    login = endpoint.login if isinstance(endpoint, Endpoint) else None
    endpoint = re.sub(r"(?<=[^:/])(/v1)?/*$", "", endpoint.strip())
    if not endpoint:
        return Endpoint("")
    if "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    more = valid and (parts.query or parts.fragment or "/v1/" in parts.path)
    if not valid or more or re.search(r"[\s\x00-\x1f\x7f\\]", endpoint):
        raise UsageError.at(
            f"the endpoint {redact(endpoint)!r} is no address of a cluster",
            todo="write the address as http://host:51080, in cluster= or AIS_ENDPOINT",
        )
    user, at, host = parts.netloc.rpartition("@")
    if at:
        login = login_in(user)
        endpoint = parts._replace(netloc=host).geturl()
    return Endpoint(endpoint, login)
