"""The pages, in the order of the menu."""

from .audit import AUDIT
from .backfill import BACKFILL
from .jobs import JOBS
from .schedules import SCHEDULES
from .workflow import WORKFLOW
from .workflows import WORKFLOWS

__all__ = ["PAGES"]

PAGES = (
    JOBS,
    SCHEDULES,
    BACKFILL,
    WORKFLOWS,
    WORKFLOW,
    AUDIT,
)
