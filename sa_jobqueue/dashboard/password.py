"""A dashboard alone, without an application around it that knows its users: a password, and which names it may be asked by.

    app = dashboard(engine, access=lambda request: Access.ADMIN.named(name_of(request)))
    app = with_password(app, "secret")

The name that a viewer gives is not checked: it says in the audit who it was, among those who know the password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..log import get_logger
from .attempts import AT_ONCE, Attempts, place_of

__all__ = ["name_of", "with_hosts", "with_password"]

logger = get_logger(__name__)

_NAME = "sa_jobqueue.viewer"
#: Characters of a name that are kept.
_MOST = 100


def name_of(request: Request) -> str:
    """The name that the viewer gave with the password; "" if none was asked for."""
    return str(request.scope.get(_NAME, ""))


def with_password(app: ASGIApp, password: str) -> ASGIApp:
    """Ask for this password, by HTTP Basic. It is sent with each request, so use TLS.

    The right password always passes. After ten wrong ones from an address, further wrong ones are answered with 429, ten a minute with 401.
    """
    expected, attempts = _digest(password), Attempts()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        header = Headers(scope=scope).get("authorization", "")
        name, given = _credentials(header)
        # Of equal length, whatever was given: the time that it takes says nothing.
        if hmac.compare_digest(_digest(given), expected) and name:
            await app({**scope, _NAME: name[:_MOST]}, receive, send)
            return
        await _refusal(attempts, header, scope)(scope, receive, send)

    return guarded


def _refusal(attempts: Attempts, header: str, scope: Scope) -> PlainTextResponse:
    """The answer to a request without the right password."""
    place = place_of((scope.get("client") or ("",))[0])
    if header and (seconds := math.ceil(attempts.wait(place))):
        return PlainTextResponse(
            f"429: too many wrong passwords came from here; try again in {seconds} s",
            status_code=429,
            headers={"retry-after": str(seconds), "cache-control": "no-store"},
        )
    if header and attempts.failed(place):
        logger.warning("%s gave %d wrong passwords", place, AT_ONCE)
    return PlainTextResponse(
        "401: give your name, which is for the audit, and the password",
        status_code=401,
        headers={"www-authenticate": 'Basic realm="jobs", charset="UTF-8"', "cache-control": "no-store"},
    )


def with_hosts(app: ASGIApp, hosts: Collection[str]) -> ASGIApp:
    """Answer requests to these hosts only. Else a page of another site, whose name leads to this machine, could read and act here."""
    allowed = frozenset(hosts)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _host(Headers(scope=scope).get("host", "")) not in allowed:
            refusal = PlainTextResponse("403: this dashboard is for this machine only", status_code=403)
            await refusal(scope, receive, send)
            return
        await app(scope, receive, send)

    return guarded


def _host(header: str) -> str:
    """Without the port: "localhost:8080" as "localhost", "[::1]:8080" as "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _credentials(header: str) -> tuple[str, str]:
    kind, _, encoded = header.partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        said = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    name, _, password = said.partition(":")
    return "".join(one for one in name.strip() if one.isprintable()), password


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
