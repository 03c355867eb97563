"""The pages, in the order of the menu."""

from .edit import EDIT
from .errors import ERRORS
from .find import FIND
from .job import JOB
from .jobs import JOBS

__all__ = ["PAGES"]

PAGES = (JOBS, ERRORS, JOB, EDIT, FIND)
