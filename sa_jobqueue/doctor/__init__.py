"""Checks that find problems of the queue and its database, and say what to do about them.

    for finding in examine(engine):
        print(finding.level, finding.name, finding.detail, finding.advice)

`CHECKS` lists the checks. `look_at` makes the checks in the caller's transaction.
"""

from .examination import Examination
from .examine import BEFORE_DEPLOY, CHECKS, Check, examine, look_at, make_reading, reading
from .finding import LEVELS, Finding, Level, Thresholds, worst

__all__ = [
    "BEFORE_DEPLOY",
    "CHECKS",
    "LEVELS",
    "Check",
    "Examination",
    "Finding",
    "Level",
    "Thresholds",
    "examine",
    "look_at",
    "make_reading",
    "reading",
    "worst",
]
