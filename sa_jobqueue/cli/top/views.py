"""What can be looked at, and where the operator is: the view, what is selected, and what is being asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .read import Picture
from .reader import Action


class View(StrEnum):
    """What fills the screen."""

    OVERVIEW = "overview"
    FAILED = "failed jobs"
    WORKERS = "workers"
    TASKS = "tasks"
    SCHEDULES = "schedules"
    JOB = "job"


#: The key of each view.
KEYS = {"o": View.OVERVIEW, "f": View.FAILED, "w": View.WORKERS, "t": View.TASKS, "s": View.SCHEDULES}


@dataclass(frozen=True, slots=True)
class Question:
    """What is about to be done, in words, and how."""

    text: str
    action: Action


@dataclass(frozen=True, slots=True)
class Stand:
    """Where the operator is. What is selected is known by its key, because the rows move while one looks."""

    view: View = View.OVERVIEW
    selected: object = None
    """The id of a job, or the name of a schedule or a queue. None: no row is marked in the overview, and the first one elsewhere."""
    position: int = 0
    """Where that was, in case it is gone; in the view of a job, the first line that is shown."""
    job: int | None = None
    question: Question | None = None
    heard: int = 0
    """The number of actions of which the operator has read what they came to."""

    def place(self, rows: Sequence[object]) -> int:
        """The number of the selected row."""
        if self.selected in rows:
            return rows.index(self.selected)
        return max(0, min(self.position, len(rows) - 1))


def rows_of(view: View, picture: Picture) -> list[object]:
    """The keys of the rows of a view from which one can be selected; in the overview a queue."""
    if view is View.OVERVIEW:
        return [one.name for one in picture.queues]
    if view is View.FAILED:
        return [row.id for row in picture.failures]
    if view is View.SCHEDULES:
        return [row["name"] for row in picture.schedules or ()]
    if view is View.WORKERS:
        return [one.name for one in picture.workers]
    return [name for name, _ in picture.tasks] if view is View.TASKS else []
