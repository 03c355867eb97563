"""The pages, in the order of the menu."""

from .archived import ARCHIVED
from .audit import AUDIT
from .backfill import BACKFILL
from .database import DATABASE
from .edit import EDIT
from .errors import ERRORS
from .find import FIND
from .job import JOB
from .jobs import JOBS
from .limits import LIMITS
from .overview import OVERVIEW
from .queues import QUEUES_PAGE
from .schedules import SCHEDULES
from .workers import WORKERS
from .workflow import WORKFLOW
from .workflows import WORKFLOWS

__all__ = ["PAGES"]

PAGES = (
    OVERVIEW,
    JOBS,
    ERRORS,
    QUEUES_PAGE,
    LIMITS,
    WORKERS,
    SCHEDULES,
    WORKFLOWS,
    DATABASE,
    AUDIT,
    BACKFILL,
    ARCHIVED,
    WORKFLOW,
    JOB,
    EDIT,
    FIND,
)
