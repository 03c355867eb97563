"""When a schedule is due: its rule, and what to do about ticks that were missed. Pure: no clock, no SQL.

>>> from datetime import UTC, datetime
>>> rule = rule_of("30 7 * * mon-fri", "Europe/Vienna")
>>> str(rule.after(datetime(2026, 10, 23, 12, tzinfo=UTC)))
'2026-10-26 06:30:00+00:00'
"""

from __future__ import annotations

from .due import MOST_COUNTED, ON_TIME, Due, Missed, due_ticks, is_stopped
from .rules import Cron, Every, Rule, every, expression_of, rule_of

__all__ = [
    "MOST_COUNTED",
    "ON_TIME",
    "Cron",
    "Due",
    "Every",
    "Missed",
    "Rule",
    "due_ticks",
    "every",
    "expression_of",
    "is_stopped",
    "rule_of",
]
