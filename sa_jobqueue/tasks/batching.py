"""Tasks whose handler takes many jobs in one call.

>>> Batching(500, wait=2.0, by="tenant_id")
Batching(size=500, wait=2.0, by='tenant_id')
>>> Batching(0)
Traceback (most recent call last):
sa_jobqueue.errors.OptionError: Batching: size must be an integer from 1 to 5,000, not 0
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from ..arguments.references import ObjectArgument, Reference, object_in
from ..arguments.signature import Plan
from ..arguments.storable import load, shown
from ..errors import OptionError, TaskError
from ..rules.retry import Duration, checked_duration

#: The most jobs in a batch: one SELECT loads the objects of all jobs.
_MOST = 5_000
#: The most seconds that a batch may wait for more jobs. Its jobs are claimed, so other workers cannot run them meanwhile.
_LONGEST = 60.0


@dataclass(frozen=True, slots=True)
class Batching:
    """The rules by which jobs of a task form batches: `@task(batch=Batching(500))`.

    `size`: the most jobs of a batch, 1 to 5,000. `wait`: seconds or a timedelta, at most a minute, that a batch that is not full waits for more
    jobs; it waits only while more jobs are due. `by`: the name of an argument, or of a column of an argument's mapped class; all jobs of a
    batch have an equal value.

    Raises OptionError for any other value.
    """

    size: int
    wait: Duration = 0.0
    by: str | None = None

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= _MOST:
            raise OptionError(f"Batching: size must be an integer from 1 to {_MOST:,}, not {shown(self.size)}")
        object.__setattr__(self, "wait", checked_duration(self.wait, "Batching: wait"))
        if self.seconds > _LONGEST:
            raise OptionError(f"Batching: wait must be at most {_LONGEST:g} s, not {self.seconds:g} s")
        if self.by is not None and (not isinstance(self.by, str) or not self.by.isidentifier()):
            raise OptionError(f"Batching: by must be the name of an argument or an attribute, not {shown(self.by)}")

    @property
    def seconds(self) -> float:
        """`wait`, in seconds."""
        assert isinstance(self.wait, (int, float))
        return float(self.wait)


def checked_batching(batch: object, others: Mapping[str, object]) -> Batching | None:
    """`batch`, a Batching or None that fits the task's other options. `others`: whether each option of `_WHY` is given. Raises TaskError."""
    if batch is None:
        return None
    if not isinstance(batch, Batching):
        raise TaskError(f"batch must be Batching(...), not {shown(batch)}: batch=Batching(500), say")
    for option, is_given in others.items():
        if is_given:
            raise TaskError(f"batch=... and {option} exclude each other: {_WHY[option]}")
    return batch


_WHY: Mapping[str, str] = {
    'executor="process"': "a batch runs in the worker's process, in one transaction",
    "keep_logs=True": "it keeps the log lines of one job, but the handler of a batch logs for many jobs",
    "dry_run=True": "a trial runs one job",
    "rescue=False": "after a failure the jobs of a batch run again, in halves, so a batch is not for jobs that must not run twice",
}

# ---- The value that all jobs of a batch have in common.

#: The value of `by` as text; None: the value is unknown, or there is no `by`.
Group: TypeAlias = str | None


class Grouping:
    """The argument or the mapped attribute that `by` names. Raises TaskError for another name."""

    def __init__(self, by: str, plan: Plan, task: str) -> None:
        self.by, self.argument = by, by
        self.of_object = by not in plan.names
        if self.of_object:
            holders = {name: object_in(plan.hints[name]) for name in plan.names}
            found = [name for name, argument in holders.items() if argument is not None and _has(argument, by)]
            if len(found) != 1:
                takes, mapped = ", ".join(plan.names) or "nothing", ", ".join(map(repr, found)) or "none"
                raise TaskError(
                    f"task {task!r}: Batching(by={by!r}) must name an argument, or a column of the mapped class of one argument; the handler takes {takes}, "
                    f"and of its mapped arguments these have it: {mapped}"
                )
            self.argument = found[0]
        elif by in plan.encrypted:
            raise TaskError(
                f"task {task!r}: Batching(by={by!r}) names a secret argument, and no two secrets are equal in their rows: name another argument"
            )

    def stored(self, args: str) -> Group:
        """The value in a job's stored arguments. None for an attribute, which is known once the object is loaded, and if the argument is missing."""
        if self.of_object:
            return None
        try:
            return json.dumps(load(args).get(self.argument), sort_keys=True)
        except (ValueError, AttributeError):
            return None

    def loaded(self, value: Any) -> Group:
        """The value of a loaded argument's attribute."""
        found = value.object if isinstance(value, Reference) else value
        return None if found is None else repr(getattr(found, self.by))


def _has(argument: ObjectArgument, name: str) -> bool:
    return name in sa.inspect(argument.cls).column_attrs
