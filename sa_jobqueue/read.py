"""`JobRead`: a job as an API may show it.

>>> from datetime import UTC, datetime
>>> from sa_jobqueue import Job
>>> job = Job(
...     id=7,
...     task="shop.send_receipt",
...     queue="mail",
...     priority=4,
...     attempt=0,
...     max_attempts=5,
...     run_at=datetime(2030, 1, 31, tzinfo=UTC),
...     created_at=datetime(2030, 1, 31, tzinfo=UTC),
... )
>>> JobRead.model_validate(job).model_dump_json(include={"id", "task", "status"})
'{"id":7,"task":"shop.send_receipt","status":"queued"}'
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from .lifecycle import JobStatus

__all__ = ["JobRead"]


class JobRead(BaseModel):
    """A job for the response of an API (`response_model=JobRead`), made from a `Job` by its attributes.

    It shows no arguments, no `meta`, no result and no errors, which may be confidential. For more, derive a class of your
    own: `class MyJob(JobRead): result: int | None`.
    """

    model_config = ConfigDict(from_attributes=True)

    id: int
    task: str
    queue: str
    status: JobStatus
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
