"""What people see of a schedule: its next times, its rule in words, its state. Pure: no clock, no SQL.

>>> from .rules import rule_of
>>> rule_in_words(rule_of("30 7 * * mon-fri")), rule_in_words(rule_of("every 5400 s"))
('At 07:30 on Monday through Friday', 'Every 1h 30m')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo

from ..errors import OptionError
from .due import is_stopped
from .rules import Cron, Every, Rule

__all__ = ["ScheduleState", "coming_ticks", "rule_in_words", "state_of", "zone_of"]

ScheduleState: TypeAlias = Literal["active", "paused", "bad"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def coming_ticks(rule: Rule, row: Mapping[Any, Any]) -> Iterator[datetime]:
    """The next ticks, in UTC, ascending, as long as there are any. `row`: of `list_schedules`.

    They begin with that in the row; or, if it is paused, they are counted from now as at the end of its pause.
    """
    at: datetime | None
    if is_stopped(row["paused_at"], row["paused_by"]):
        at = _after(rule, row["now"])
    else:
        at = row["next_at"] or _after(rule, row["counts_from"])
    while at is not None:
        yield at.astimezone(UTC)
        at = _after(rule, at)


def rule_in_words(rule: Rule) -> str:
    """As in "At 07:30 on Monday through Friday", "Every 5m"."""
    if isinstance(rule, Cron):
        return rule.in_words
    left, said = rule.seconds, list[str]()
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            said.append(f"{number:,.0f}{unit}")
    if left or not said:
        said.append(f"{left:g}s")
    return f"Every {' '.join(said)}"


def state_of(row: Mapping[Any, Any]) -> ScheduleState:
    """Of a row of `list_schedules`: active, paused, or bad: a worker could do nothing about it."""
    return "paused" if row["paused_at"] is not None else "bad" if row["error"] is not None else "active"


def zone_of(rule: Rule) -> tzinfo:
    """The zone of a rule; an interval has UTC."""
    return UTC if isinstance(rule, Every) or rule.timezone == "UTC" else ZoneInfo(rule.timezone)


def _after(rule: Rule, moment: datetime) -> datetime | None:
    try:
        return rule.after(moment)
    except (OptionError, OverflowError):  # there is no later one
        return None
