"""ETL: off unless the cluster was made with ``etl=True``."""

from __future__ import annotations

from .problem import ReplyError
from .reply import Reply
from .routes import Call, route

__all__ = ["get_transformed"]


def _refuse() -> ReplyError:
    message = "cannot use ETL in a build without ETL support - operation not supported"
    return ReplyError(501, message, "ErrUnsupp")


@route("proxy", "GET", "etl", sdk="Cluster.list_etls")
def list_etls(call: Call) -> Reply:  # noqa: ARG001
    """All transforms."""
    raise _refuse()


def get_transformed(call: Call) -> Reply:  # noqa: ARG001
    """An object after a transform."""
    raise _refuse()
