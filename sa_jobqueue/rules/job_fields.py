"""The columns of a job that are filled when it is enqueued, as a table.

>>> [field.column for field in JOB_FIELDS if field.schedule is None]
['run_at', 'subject_type', 'subject_id']
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class JobField:
    """A column of a job, and where its value comes from."""

    column: str
    attribute: str
    """The attribute of a `Call`."""
    kind: Literal["text", "integer", "json", "time"]
    """The kind of value: a text, a small integer, JSON as text, or a time: a datetime, or a timedelta from now."""
    part: Literal["type", "id"] | None = None
    """The attribute of that attribute, which may be None."""
    rare: bool = False
    """Whether an INSERT leaves the column out where no job has a value."""
    by_row: tuple[str, ...] = ()
    """The options of `enqueue_select` that set it row by row. For a time: the first takes times, the last durations."""
    schedule: str | None = None
    """The column of a schedule that has the value for its jobs."""

    bounds: tuple[int, int | None] | None = None
    """The smallest and the largest value of a number, or length of a text. None: no limit, or that of the type."""

    def read(self, call: Any) -> Any:
        """The value that this call has."""
        return self.part_of(getattr(call, self.attribute))

    def part_of(self, value: Any) -> Any:
        """The value for the column in the value of the attribute."""
        return value if self.part is None else getattr(value, self.part, None)


#: In the order of the columns in an INSERT.
JOB_FIELDS = (
    JobField("task", "task", "text", schedule="task", bounds=(1, 200)),
    JobField("args", "args", "json", schedule="args"),
    JobField("queue", "queue", "text", by_row=("queue",), schedule="queue", bounds=(1, 200)),
    JobField("priority", "priority", "integer", by_row=("priority",), schedule="priority", bounds=(0, 9)),
    JobField(
        "max_attempts", "max_attempts", "integer", by_row=("max_attempts",), schedule="max_attempts", bounds=(1, None)
    ),
    JobField("run_at", "run_at", "time", by_row=("run_at", "delay")),
    JobField("meta", "meta", "json", schedule="meta"),
    JobField("uniqueness", "uniqueness", "json", rare=True, schedule="uniqueness"),
    JobField("expires_at", "expires", "time", rare=True, by_row=("expires_at", "expires_in"), schedule="expires_in"),
    JobField("deadline_at", "deadline", "time", rare=True, by_row=("deadline",), schedule="deadline"),
    # A key has up to 200 characters; a name that a claim gives to the jobs of a limited task has one more.
    JobField("concurrency_key", "key", "text", rare=True, by_row=("key",), schedule="concurrency_key", bounds=(1, 201)),
    JobField("units", "units", "integer", rare=True, by_row=("units",), schedule="units", bounds=(1, None)),
    JobField("subject_type", "subject", "text", part="type", rare=True),
    JobField("subject_id", "subject", "text", part="id", rare=True),
    JobField("extras", "extras", "json", rare=True, schedule="extras"),
)
RARE_FIELDS = tuple(field for field in JOB_FIELDS if field.rare)

#: The entry of a job's `meta` with its depth in a chain of jobs that changes enqueue: see `on_change`.
CHANGE_DEPTH = "change_depth"
