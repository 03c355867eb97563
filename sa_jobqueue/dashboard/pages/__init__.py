"""The pages, in the order of the menu."""

from .archived import ARCHIVED
from .database import AUDIT, DATABASE
from .errors import ERRORS
from .find import FIND
from .job import EDIT, JOB
from .jobs import JOBS
from .limits import LIMITS
from .overview import OVERVIEW
from .queues import QUEUES_PAGE, WORKERS
from .schedules import BACKFILL, SCHEDULES
from .workflow import WORKFLOW
from .workflows import WORKFLOWS

PAGES = (
    OVERVIEW, JOBS, ERRORS, QUEUES_PAGE, LIMITS, WORKERS, SCHEDULES, WORKFLOWS, DATABASE, AUDIT,
    BACKFILL, ARCHIVED, WORKFLOW, JOB, EDIT, FIND,
)  # fmt: skip
