"""Whether all is well with the queue and with the database it lives in, and what to do where it is not.

    for finding in examine(engine):
        print(finding.level, finding.name, finding.detail, finding.advice)

`CHECKS` lists what is looked at. `look_at` makes the checks in a transaction of the caller's.
"""

from .examination import Examination
from .examine import CHECKS, Check, examine, look_at, make_reading, reading
from .finding import LEVELS, Finding, Level, Thresholds, worst

__all__ = [
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
