"""Addresses by which another system answers a waiting handler: how they are signed and verified.

>>> hooks = Callbacks(url="https://shop.example/hooks", keys=["a key of 16 characters or more"])
>>> address = hooks.sign(Ticket("job:17:paid", 1_900_000_000, "n0"))
>>> address.startswith("https://shop.example/hooks/"), address.signal
(True, 'job:17:paid')
>>> hooks.read(address.rpartition("/")[2]), hooks.read("forged")
(Ticket(signal='job:17:paid', expires=1900000000, nonce='n0'), None)
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigurationError

#: The fewest bytes of a key.
_SHORTEST = 16
#: The longest life of an address, in days. The database remembers used addresses for as long.
MOST_DAYS = 30


class CallbackUrl(str):
    """An address. A POST to it sends a signal."""

    __slots__ = ("signal",)
    signal: str
    """The name of the signal, for `ctx.wait_signal`."""


class Ticket(NamedTuple):
    """The permission in an address: to send one signal of this name, until a time."""

    signal: str
    expires: int
    """Seconds since 1970, by the database's clock."""
    nonce: str
    """Tells apart the addresses of one signal."""


class Callbacks:
    """The settings of `ctx.callback_url`: set `default_registry.callbacks`.

    `url`: the public URL at which `sa_jobqueue.dashboard.callbacks` is mounted. `keys`: secrets of 16 characters or more, which workers and web
    processes share. The first key signs, and all keys are accepted. To replace a key, put the new key before the old one, and remove the old key
    once its addresses have expired. `max_bytes`: the longest body of an answer.

    Raises ConfigurationError for an invalid URL or invalid keys.
    """

    def __init__(self, *, url: str, keys: Sequence[str], max_bytes: int = 65_536) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
            raise ConfigurationError(
                f'Callbacks(url=...) is an address such as "https://shop.example/hooks", not {url!r}'
            )
        if isinstance(keys, str) or not keys or any(len(key.encode()) < _SHORTEST for key in keys):
            raise ConfigurationError(
                f"Callbacks(keys=[...]) takes a list of secrets, each of {_SHORTEST} characters or more"
            )
        self.url, self.max_bytes = url.rstrip("/"), max_bytes
        self._keys = {hashlib.sha256(key.encode()).hexdigest()[:8]: key.encode() for key in keys}

    @property
    def newest(self) -> str:
        """The name of the key that signs."""
        return next(iter(self._keys))

    def sign(self, ticket: Ticket, key: str = "") -> CallbackUrl:
        """The address for a ticket. `key`: the name of the key that signs; if this key is gone, the newest key signs."""
        body = urlsafe_b64encode(json.dumps(ticket, separators=(",", ":")).encode()).rstrip(b"=")
        sign = self._signature(body, self._keys.get(key) or self._keys[self.newest])
        address = CallbackUrl(f"{self.url}/{body.decode()}.{sign.decode()}")
        address.signal = ticket.signal
        return address

    def read(self, token: str) -> Ticket | None:
        """The ticket in the last part of an address; None if no key has signed the ticket for this URL."""
        body, _, given = token.encode(errors="surrogatepass").partition(b".")
        if not any(hmac.compare_digest(self._signature(body, key), given) for key in self._keys.values()):
            return None
        return Ticket(*json.loads(urlsafe_b64decode(body + b"=" * (-len(body) % 4))))

    def _signature(self, body: bytes, key: bytes) -> bytes:
        signed = hmac.digest(key, f"sa_jobqueue {self.url}\n".encode() + body, "sha256")
        return urlsafe_b64encode(signed).rstrip(b"=")
