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
from .tasks import QUEUE, TASK, TASKS
from .workflow import WORKFLOW
from .workflows import WORKFLOWS

PAGES = (
    OVERVIEW, JOBS, ERRORS, TASKS, QUEUES_PAGE, LIMITS, WORKERS, SCHEDULES, WORKFLOWS, DATABASE, AUDIT,
    BACKFILL, ARCHIVED, WORKFLOW, JOB, EDIT, TASK, QUEUE, FIND,
)  # fmt: skip
