"""What every answer carries, and which requests are refused before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CSP", "Guard", "is_own"]

#: Nothing from outside, nothing inline: everyone who may enqueue writes the rows that a page shows.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "x-frame-options": "DENY",
        "cross-origin-opener-policy": "same-origin",
    }
)
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


def is_own(headers: Headers, trusted: Collection[str] = ()) -> bool:
    """Whether a request that changes something comes from a page of ours, as the browser says.

    `trusted`: origins such as "https://ops.example.com", for a proxy that rewrites the host.
    """
    origin = headers.get("origin")
    if origin is not None and origin in trusted:
        return True
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = headers.get("host")
    return bool(host) and origin in (f"http://{host}", f"https://{host}")


class Guard:
    """Refuses changes that other sites ask for, and adds the headers that keep a browser from running what a row says."""

    def __init__(self, app: ASGIApp, *, csp: str | None = CSP, trusted_origins: Collection[str] = ()) -> None:
        self._app, self._trusted = app, frozenset(trusted_origins)
        self._headers = dict(_HEADERS) if csp is None else {"content-security-policy": csp, **_HEADERS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if scope["method"] not in _SAFE and not is_own(Headers(scope=scope), self._trusted):
            refusal = PlainTextResponse(
                "403: this change was not asked for by a page of the dashboard. Behind a proxy that rewrites the host, name the "
                "address of the page in trusted_origins.",
                status_code=403,
            )
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)
