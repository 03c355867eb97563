"""Every way to make a job fills the columns that `enqueue()` fills."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql

from sa_jobqueue import Job
from sa_jobqueue.migrations import v01
from sa_jobqueue.rules.job_fields import JOB_FIELDS
from sa_jobqueue.statements import copy_jobs

#: What a job does not get in this way, with all its other fields.
NOT_GIVEN = {
    "schedules.sql": {"subject_type", "subject_id"},
    "workflows.sql": set[str](),
    "advance.sql": {"uniqueness", "expires_at", "deadline_at"},  # callbacks, for which the workflow refuses these
    "a copy": set[str](),
}


def inserted(way: str) -> set[str]:
    """The columns that the INSERT of jobs has."""
    if way == "a copy":
        text = str(copy_jobs(Job.id == 1).compile(dialect=postgresql.dialect())).replace("sa_jobqueue.", "{schema}.")
    else:
        text = (Path(v01.__file__).parent / way).read_text()
    (columns,) = re.findall(r"INSERT INTO \{schema\}\.job \(([^)]*)\)", text)
    return set(re.findall(r"\w+", columns))


@pytest.mark.parametrize("way", NOT_GIVEN)
def test_a_job_has_every_field_however_it_is_made(way: str) -> None:
    """By the tick of a schedule, as a member of a workflow, as a callback, as a copy."""
    assert {field.column for field in JOB_FIELDS} - inserted(way) == NOT_GIVEN[way]
