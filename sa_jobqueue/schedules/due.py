"""Which ticks of a schedule become jobs by now, and when the next one is.

>>> from datetime import UTC, datetime
>>> from .rules import every
>>> seven, nine = (datetime(2026, 3, 1, hour, tzinfo=UTC) for hour in (7, 9))
>>> due = due_ticks(every(3600), seven, nine, missed="once")
>>> [(at.hour, number) for at, number in due.ticks], due.next_at.hour
([(9, 3)], 10)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from .rules import Rule

__all__ = ["MOST_COUNTED", "ON_TIME", "Due", "Missed", "due_ticks", "is_stopped"]

Missed: TypeAlias = Literal["once", "skip", "all"]

#: Ticks are counted up to this number. A job that stands for more says this number.
MOST_COUNTED = 1_000
#: A tick was not missed if a worker looks within this time, and the next one has not come.
ON_TIME = timedelta(seconds=60)


class Due(NamedTuple):
    """What is to be done about a schedule by now."""

    ticks: list[tuple[datetime, int]]
    """The ticks that become jobs, ascending; each with the number of ticks for which its job stands."""
    next_at: datetime
    """The first tick about which nothing is to be done yet."""
    left_out: int
    """Ticks that were missed, and become no job."""
    goes_on: bool
    """There are more by now: this is to be asked again, from `next_at`."""


def due_ticks(
    rule: Rule,
    next_at: datetime,
    now: datetime,
    *,
    missed: Missed,
    catch_up: timedelta | None = None,
    most: int = 100,
) -> Due:
    """What is to be done by `now` about the ticks from the one at `next_at` on.

    `missed`: "once", one job for all of them, at the last; "skip", a job only if the last one is on time, for that one; "all", a
    job for each, at most `most` in one answer. `catch_up`: ticks that are longer ago are left out; None: none is too old.
    Raises OptionError if the rule names no later time.
    """
    if next_at > now:
        return Due([], next_at, 0, False)
    first, left_out = next_at, 0
    if catch_up is not None and next_at < now - catch_up:
        first = rule.first_from(next_at, now - catch_up)
        left_out = _count(rule, next_at, first - timedelta(microseconds=1))
        if first > now:
            return Due([], first, left_out, False)
    if missed == "all":
        return _each(rule, first, now, left_out, most)
    last = rule.last(first, now)
    number = _count(rule, first, last)
    after = rule.after(last)
    if missed == "once":
        return Due([(last, number)], after, left_out, False)
    if now - last <= ON_TIME:
        return Due([(last, 1)], after, left_out + number - 1, False)
    return Due([], after, left_out + number, False)


def is_stopped(paused_at: datetime | None, paused_by: str | None) -> bool:
    """Whether a schedule is paused so that the ticks of the pause are left out: it begins to count again when the pause ends.

    One that is paused because no code declares it goes on where it was: those ticks are missed ones.
    """
    return paused_at is not None and paused_by != "undeclared"


def _each(rule: Rule, first: datetime, now: datetime, left_out: int, most: int) -> Due:
    ticks: list[tuple[datetime, int]] = []
    at = first
    while at <= now and len(ticks) < most:
        ticks.append((at, 1))
        at = rule.after(at)
    return Due(ticks, at, left_out, at <= now)


def _count(rule: Rule, first: datetime, until: datetime) -> int:
    return rule.count(first, until, most=MOST_COUNTED)
