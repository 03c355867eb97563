"""The pages, in the order of the menu."""

from .database import DATABASE
from .edit import EDIT
from .errors import ERRORS
from .find import FIND
from .job import JOB
from .jobs import JOBS
from .limits import LIMITS
from .overview import OVERVIEW
from .queues import QUEUES_PAGE
from .workers import WORKERS

__all__ = ["PAGES"]

PAGES = (OVERVIEW, JOBS, ERRORS, QUEUES_PAGE, LIMITS, WORKERS, DATABASE, JOB, EDIT, FIND)
