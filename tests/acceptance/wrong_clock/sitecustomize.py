"""Python imports this first in a process whose clock is to be wrong: by WRONG_CLOCK seconds. `monotonic()` is as it was."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time

OFFSET = float(os.environ.get("WRONG_CLOCK", "0"))

_time, _real = time.time, dt.datetime


class WrongDatetime(_real):
    """A datetime that does not know what time it is."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> WrongDatetime:  # type: ignore[override]
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> WrongDatetime:
        return cls.now(dt.UTC).replace(tzinfo=None)


if OFFSET:
    time.time = lambda: _time() + OFFSET
    time.time_ns = lambda: int(time.time() * 1e9)
    dt.datetime = WrongDatetime  # type: ignore[misc]
    print(
        f"the clock says {dt.datetime.now(dt.UTC) - _real.now(dt.UTC)} more than it is",
        file=sys.stderr,
    )
