"""The adapter of the sessions of the SDK.

Its own module, as `requests` takes 0.07 s to import: only what uses the SDK imports it.
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from torchdata_ais.store.transport.cancel import Cancel
from torchdata_ais.store.transport.exchange import check_kind, check_length
from torchdata_ais.store.transport.options import StoreOptions
from torchdata_ais.store.transport.pools import IdleLostError, report_sockets

_PIECE = 64 << 10
_ERROR_BYTES = 64 << 10  # more than this is not read of an error


class BoundedAdapter(HTTPAdapter):
    """Adapter that tries one request once, and reads the whole answer."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        once = urllib3.Retry(0, redirect=5, raise_on_status=False)
        super().__init__(max_retries=once, pool_maxsize=options.pool_size)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make the pool manager, with our connections."""
        super().init_poolmanager(*args, **kwargs)
        report_sockets(self.poolmanager, self._options)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pool manager for a proxy, with our connections."""
        manager = super().proxy_manager_for(*args, **kwargs)
        report_sockets(manager, self._options)
        return manager

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Send `request` and return the answer; `Failed` if it is not AIStore's."""
        while True:
            with suppress(IdleLostError):  # one idle connection fewer each time
                response = super().send(request, *args, **kwargs)
                break
        try:
            Cancel.current().set_timeout(self._options.stall_timeout)
            body = self._body(response)
        except BaseException:
            response.close()
            raise
        if 200 <= response.status_code < 300:
            check_kind(response.headers.get("Content-Type", ""), body, self._options)
        headers = dict(response.headers)
        headers.pop("Content-Encoding", None)  # it was decoded
        whole = urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=headers,
            status=response.status_code,
            reason=response.reason,
            preload_content=False,
            enforce_content_length=False,
        )
        answer = self.build_response(request, whole)
        answer.encoding = "utf-8"  # as AIStore writes; a guess by the bytes may take minutes
        return answer

    def _body(self, response: requests.Response) -> bytes:
        """Return the body: of an error its beginning, of anything else all of it."""
        body = bytearray()
        if response.status_code >= 400:
            with suppress(requests.RequestException):  # the status is known, and suffices
                for piece in response.iter_content(_PIECE):
                    body += piece
                    if len(body) >= _ERROR_BYTES:
                        break
            response.close()
            return bytes(body[:_ERROR_BYTES])
        for piece in response.iter_content(_PIECE):
            body += piece
            check_length(len(body), self._options)
        return bytes(body)
