"""Wrong passwords by address: ten at once, and then one every six seconds, are answered with 401, and more with 429.

This tells the operator of a guesser, and a program with an old password to stop. It cannot slow down one who guesses: the right password
always passes, or a guesser could lock out others. A guesser is kept out by the length of the password.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from time import monotonic

__all__ = ["Attempts", "place_of"]

#: Wrong passwords that are answered with 401 one after the other, and seconds until the next one is.
AT_ONCE, EVERY = 10, 6.0
#: Addresses that are remembered; of more, those that have guessed least are forgotten.
_MOST = 10_000


class Attempts:
    """Wrong passwords by address. Used by one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        """When the address will have waited for all of its guesses."""

    def wait(self, place: str) -> float:
        """Seconds until a wrong password of this address is answered with 401 again; 0: now."""
        return max(self._until.get(place, 0.0) - self._clock() - (AT_ONCE - 1) * EVERY, 0.0)

    def failed(self, place: str) -> bool:
        """One was wrong. True: it was the last one for now."""
        now = self._clock()
        if place not in self._until and len(self._until) >= _MOST:
            self._forget(now)
        self._until[place] = max(self._until.get(place, 0.0), now) + EVERY
        return self.wait(place) > 0

    def _forget(self, now: float) -> None:
        self._until = {place: until for place, until in self._until.items() if until > now}
        if len(self._until) >= _MOST:
            del self._until[min(self._until, key=self._until.__getitem__)]


def place_of(host: str) -> str:
    """An address as guesses are counted: of IPv6 the network of 64 bits, all of which one guesser has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket of this machine, or a name
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
