"""The pages, in the order of the menu."""

from .jobs import JOBS

__all__ = ["PAGES"]

PAGES = (JOBS,)
