"""What a key does: it moves, changes the view, or asks whether to act on what is selected."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import sqlalchemy as sa

from ...models import Job, Schedule
from ...sql.workflows.actions import reopen_below
from ...statements import cancel_jobs, pause, pause_schedules, resume, resume_schedules, retry_jobs
from ..output import cleaned
from .reader import Action, Seen
from .views import KEYS, Question, Stand, View, rows_of

#: The keys that end the program; escape does where there is nothing to go back to.
QUIT = "q"

_STEPS = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": 10, "page up": -10, "home": -(10**9), "end": 10**9}


def press(key: str, stand: Stand, seen: Seen) -> tuple[Stand, Action | None]:
    """Where the operator is after a key, and what is to be done: only what was asked and answered with y."""
    if stand.question is not None:
        return replace(stand, question=None), stand.question.action if key in {"y", "Y"} else None
    if key in KEYS:
        return Stand(KEYS[key]), None
    if key in _STEPS:
        return _moved(stand, seen, _STEPS[key]), None
    if key == "escape":
        back = Stand(View.FAILED, selected=stand.job) if stand.view is View.JOB else Stand()
        return back, None
    return _on_selected(key, stand, seen), None


def _moved(stand: Stand, seen: Seen, step: int) -> Stand:
    if stand.view is View.JOB:
        return replace(stand, position=max(0, min(stand.position + step, 10_000)))
    rows = rows_of(stand.view, seen.picture)
    if not rows:
        return stand
    if stand.view is View.OVERVIEW and stand.selected is None:
        step = 0  # the first key marks a row
    position = max(0, min(stand.place(rows) + step, len(rows) - 1))
    return replace(stand, selected=rows[position], position=position)


def _on_selected(key: str, stand: Stand, seen: Seen) -> Stand:
    """Keys of one view."""
    rows = rows_of(stand.view, seen.picture)
    one = stand.job if stand.view is View.JOB else rows[stand.place(rows)] if rows else None
    match stand.view, key:
        case View.FAILED, "enter" if isinstance(one, int):
            return Stand(View.JOB, job=one)
        case ((View.FAILED | View.JOB), "r") if isinstance(one, int):
            return replace(stand, question=Question(f"Run job {one} again, now?", partial(_retry, one)))
        case View.JOB, "c" if isinstance(one, int):
            return replace(stand, question=Question(f"Cancel job {one}?", partial(_cancel, one)))
        case View.SCHEDULES, "p" if isinstance(one, str):
            return replace(stand, selected=one, question=_of_schedule(one, seen))
        case View.OVERVIEW, "p" if isinstance(one, str):
            return replace(stand, selected=one, question=_of_queue(one, seen))
        case _:
            return stand


def _of_queue(name: str, seen: Seen) -> Question | None:
    row = next((row for row in seen.picture.queues if row.name == name), None)
    if row is None:
        return None
    if row.paused is None:
        return Question(f"Pause queue {cleaned(name)}? What runs goes on.", partial(_pause_queue, name))
    return Question(f"Resume queue {cleaned(name)}?", partial(_resume_queue, name))


def _of_schedule(name: str, seen: Seen) -> Question | None:
    row = next((row for row in seen.picture.schedules or () if row["name"] == name), None)
    if row is None:
        return None
    if row["paused_at"] is None:
        return Question(f"Pause the schedule {cleaned(name)}?", partial(_pause, name))
    return Question(f"Let the schedule {cleaned(name)} go on, from now?", partial(_resume, name))


def _retry(id: int, connection: sa.Connection) -> str:
    # First the workflow: its retry locks its row before its jobs.
    done = [*connection.scalars(reopen_below([id])), *connection.scalars(retry_jobs(Job.id == id))]
    return f"job {id} is queued again" if done else f"job {id} cannot be retried: it runs, or another job has its key"


def _cancel(id: int, connection: sa.Connection) -> str:
    done = connection.execute(cancel_jobs(Job.id == id)).all()
    return f"job {id} is cancelled, or was asked to stop" if done else f"job {id} is not cancelled: it has ended"


def _pause_queue(name: str, connection: sa.Connection) -> str:
    connection.execute(pause(name))
    return f"queue {cleaned(name)} is paused"


def _resume_queue(name: str, connection: sa.Connection) -> str:
    done = connection.execute(resume(name)).all()
    return f"queue {cleaned(name)} is resumed" if done else f"queue {cleaned(name)} was not paused any more"


def _pause(name: str, connection: sa.Connection) -> str:
    done = connection.execute(pause_schedules(Schedule.name == name)).all()
    return f"schedule {cleaned(name)} is paused" if done else f"there is no schedule {cleaned(name)} any more"


def _resume(name: str, connection: sa.Connection) -> str:
    done = connection.execute(resume_schedules(Schedule.name == name)).all()
    return f"schedule {cleaned(name)} goes on" if done else f"schedule {cleaned(name)} was not paused any more"
