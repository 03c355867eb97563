"""The row as a Python object, before any database has seen it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sa_jobqueue.enqueueing.jobs import enqueue
from sa_jobqueue.errors import StatusError
from sa_jobqueue.models import Job
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.tasks.registry import TaskName

MAIL = TaskName("mail")
HOUR = timedelta(hours=1)
NEW = {
    "bare": (Job(task="mail"), False),
    "at once": (enqueue(MAIL), False),
    "delayed": (enqueue(MAIL.options(delay=HOUR)), True),
    "at a time to come": (enqueue(MAIL.options(run_at=datetime.now(UTC) + HOUR)), True),
    "at a time gone by": (enqueue(MAIL.options(run_at=datetime.now(UTC) - HOUR)), False),
}


@pytest.mark.parametrize("name", NEW)
def test_a_job_that_was_not_flushed_can_be_read(name: str) -> None:
    """As the row will be: its defaults are the table's, its delay is not a time yet."""
    job, scheduled = NEW[name]

    assert job.is_scheduled is scheduled
    assert (job.is_retrying, job.is_live, job.is_finished) == (False, True, False)


def test_a_status_is_not_set_by_hand() -> None:
    """Neither on the object nor in its constructor; the message says what does it."""
    job = enqueue(MAIL)

    with pytest.raises(StatusError, match=r"COMPLETED.*cancel_jobs"):
        job.status = JobStatus.COMPLETED
    with pytest.raises(StatusError, match=r"'completed'.*cancel_jobs"):
        Job(task="mail", status="completed")
    with pytest.raises(StatusError, match="None"):
        Job(task="mail", status=None)
    assert job.status is JobStatus.QUEUED


def test_the_status_that_it_has_is_no_change() -> None:
    """It stays what it was, of its own type."""
    job = Job(task="mail", status="queued")
    job.status = "queued"  # type: ignore[assignment]

    assert job.status is JobStatus.QUEUED
