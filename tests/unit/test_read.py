"""`JobRead`: what an API may show of a job."""

from __future__ import annotations

from datetime import UTC, datetime

from sa_jobqueue import Job, JobRead, JobStatus

NOW = datetime(2030, 1, 31, tzinfo=UTC)
#: Columns that may hold private data, or are the queue's own.
HIDDEN = {
    "args", "meta", "result", "errors", "worker", "claims", "rescues", "lease_expires_at", "purge_at", "cancel_requested_at",
}  # fmt: skip


def test_a_job_is_read_by_its_attributes_and_nothing_private_with_it() -> None:
    """A new column is hidden until it is decided that it may be seen."""
    job = Job(
        id=7, task="mail", args={"password": "s3cret"}, meta={"tenant": "s3cret"}, errors=[{"message": "s3cret"}],
        result="s3cret", queue="default", priority=4, attempt=1, max_attempts=5, run_at=NOW, created_at=NOW,
    )  # fmt: skip

    read = JobRead.model_validate(job)

    assert (read.id, read.task, read.status, read.run_at) == (7, "mail", JobStatus.QUEUED, NOW)
    assert "s3cret" not in read.model_dump_json()
    assert set(JobRead.model_fields) <= set(Job.__table__.columns.keys()) - HIDDEN


def test_a_subclass_of_job_read_shows_more() -> None:
    """It names further columns, with types of its own."""

    class WithResult(JobRead):
        result: dict[str, int] | None

    job = Job(
        id=7, task="mail", result={"a": 1}, queue="default", priority=4, attempt=1, max_attempts=5, run_at=NOW, created_at=NOW,
    )  # fmt: skip

    assert WithResult.model_validate(job).result == {"a": 1}
