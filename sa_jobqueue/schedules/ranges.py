"""The ticks of a rule in a range of time, as for a backfill.

>>> from datetime import UTC, datetime
>>> from .rules import rule_of
>>> start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
>>> [at.hour for at in ticks_between(rule_of("0 */9 * * *"), start, end, anchor=start)]
[0, 9, 18]
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ..errors import OptionError
from .rules import Every, Rule

__all__ = ["ticks_between"]

_INSTANT = timedelta(microseconds=1)


def ticks_between(rule: Rule, start: datetime, end: datetime, *, anchor: datetime) -> Iterator[datetime]:
    """The ticks from `start` on and before `end`, in UTC, ascending. Raises OptionError for a time that is too early for any.

    `anchor`: a tick of an interval, or where it is counted from.
    """
    try:
        at = _first(rule, start, anchor)
        while at is not None and at < end:
            yield at.astimezone(UTC)
            at = _next(rule, at)
    except OverflowError as error:
        raise OptionError(f"a schedule has no ticks at {start:%Y-%m-%d}: give a later time") from error


def _first(rule: Rule, start: datetime, anchor: datetime) -> datetime | None:
    if not isinstance(rule, Every):
        return _next(rule, start - _INSTANT)
    step = timedelta(seconds=rule.seconds)
    return anchor - step * ((anchor - start) // step)


def _next(rule: Rule, moment: datetime) -> datetime | None:
    try:
        return rule.after(moment)
    except OptionError:  # it names no later time
        return None
