"""Headers of all answers, and requests that are refused before anything is read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import math
from collections.abc import Callable, Collection, Mapping
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..util.log import get_logger

#: Nothing from outside, nothing inline, because everyone who may enqueue writes rows that pages show.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


def is_own(headers: Headers, trusted: Collection[str] = ()) -> bool:
    """Whether a changing request comes from a page of ours, according to the browser.

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
    """Refuses changes that other sites request, and adds headers that keep a browser from running values of rows."""

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


# ---- Wrong passwords by address: ten at once, and then one every six seconds, are answered with 401; more with 429.

#: The wrong passwords at once that are answered with 401, and the seconds between further such answers.
AT_ONCE, EVERY = 10, 6.0
#: The most addresses that are remembered; addresses with the fewest guesses are forgotten first.
_MOST_ADDRESSES = 10_000


class Attempts:
    """Wrong passwords by address, for one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        """The time at which the address will have waited for all of its guesses."""

    def wait(self, place: str) -> float:
        """Seconds until a wrong password of this address is answered with 401 again; 0: now."""
        return max(self._until.get(place, 0.0) - self._clock() - (AT_ONCE - 1) * EVERY, 0.0)

    def failed(self, place: str) -> bool:
        """Count a wrong password. True if it was the last that is answered with 401 for now."""
        now = self._clock()
        if place not in self._until and len(self._until) >= _MOST_ADDRESSES:
            self._forget(now)
        self._until[place] = max(self._until.get(place, 0.0), now) + EVERY
        return self.wait(place) > 0

    def _forget(self, now: float) -> None:
        self._until = {place: until for place, until in self._until.items() if until > now}
        if len(self._until) >= _MOST_ADDRESSES:
            del self._until[min(self._until, key=self._until.__getitem__)]


def place_of(host: str) -> str:
    """The address by which guesses are counted: for IPv6 the network of 64 bits, which belongs to one guesser."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket of this machine, or a name
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


# ---- A dashboard without an application that knows its users: a password, and the allowed host names.

logger = get_logger(__name__)

_NAME = "sa_jobqueue.viewer"
#: Characters of a name that are kept.
_MOST = 100


def name_of(request: Request) -> str:
    """The name that the viewer gave with the password; "" if none was asked for."""
    return str(request.scope.get(_NAME, ""))


def with_password(app: ASGIApp, password: str) -> ASGIApp:
    """Ask for this password, by HTTP Basic. It is sent with each request, so use TLS.

    The right password always passes. After ten wrong passwords from an address, ten a minute are answered with 401, and the others with 429.
    """
    expected, attempts = _digest(password), Attempts()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        header = Headers(scope=scope).get("authorization", "")
        name, given = _credentials(header)
        # Digests have equal length, so that the time of the comparison reveals nothing.
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
    """Answer requests to these hosts only. Otherwise a page of a site whose name resolves to this machine could read and act here."""
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
    return "".join(letter for letter in name.strip() if letter.isprintable()), password


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
