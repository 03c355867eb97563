"""Follow-ups: jobs that the end of another job enqueues. The `extras` of the other job describe its follow-ups as JSON.

A worker that knows neither task can write the end, so `extras` has the options and the names of the parameters. The database function
`follow_up` inserts the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ..arguments.storable import load, shown
from ..errors import JobQueueError

#: The names of a follow-up's parameters, by the option that declares the follow-up.
FILLED: Mapping[str, tuple[str, ...]] = {
    "on_failure": ("job_id", "task", "args", "error"),
    "on_success": ("job_id", "task", "args", "result"),
}


def with_follow_ups(
    extras: str | None, given: Mapping[str, object], error: type[JobQueueError], *, record: bool | None = None
) -> str | None:
    """The `extras` of a job with these follow-ups, tasks by option; None keeps a follow-up, False removes it.

    `record`: whether the job's result is stored; None: unknown. Raises `error` for an invalid follow-up.
    """
    stored = {
        option: None if task is False else _stored(option, task, error, record=record)
        for option, task in given.items()
        if task is not None
    }
    return with_extras(extras, stored)


def with_extras(extras: str | None, given: Mapping[str, Any]) -> str | None:
    """The `extras` of a job with these values by name, as JSON text; None removes a value."""
    found = {name: value for name, value in {**load(extras or "{}"), **given}.items() if value is not None}
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if found else None


def check_keys(whose: str, key: str | None, extras: str | None, error: type[JobQueueError]) -> None:
    """Raise `error` for other keys without a key."""
    if key is None and (keys := load(extras or "{}").get("keys")):
        raise error(
            f"{whose}: keys={keys} only limit, and need a key by which the job has its turn: write .options(key=..., keys=...)"
        )


def _stored(option: str, task: Any, error: type[JobQueueError], *, record: bool | None) -> dict[str, Any]:
    if not (hasattr(type(task), "parameters") and hasattr(type(task), "chosen")):
        raise error(f"{option} must be a task, a function with @task, or False, not {shown(task)}")
    options = task.chosen
    if options.unique or options.debounce or options.expires is not None or options.deadline is not None:
        raise error(
            f"{option}: {task.name!r} can be no unique or debounced job, and have no expiry and no deadline: take them off by .options(...)"
        )
    if options.columns or options.subject:
        raise error(
            f"{option}: {task.name!r} gets no subject and no columns of your own: take them off by .options(...)"
        )
    if not isinstance(options.run_at, timedelta):
        raise error(f"{option}: {task.name!r} is due at once, or after a delay, and not at a time")
    check_keys(f"{option}: {task.name!r}", options.key, options.extras, error)
    takes = _takes(option, task, error)
    if "result" in takes and record is False:
        raise error(f"{option}: {task.name!r} takes result, which is stored only with @task(record=True)")
    stored = {
        "task": task.name,
        "queue": options.queue,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "meta": load(options.meta) or None,
        "delay": options.run_at.total_seconds() or None,
        "key": options.key,
        "units": options.units,
        "extras": _of_its_own(options.extras),
        "takes": takes,
    }
    return {name: value for name, value in stored.items() if value is not None}


def _takes(option: str, task: Any, error: type[JobQueueError]) -> list[str]:
    """The names of the parameters that are filled."""
    plan, filled = task.parameters, FILLED[option]
    if others := [name for name in plan.names if name not in filled and name in plan.required]:
        raise error(
            f"{option}: {task.name!r} takes {', '.join(others)}, and a follow-up is given only {', '.join(filled)}: leave it out, or "
            "give it a default"
        )
    return [name for name in filled if name in plan.names]


def _of_its_own(extras: str | None) -> dict[str, Any] | None:
    """The `extras` of the follow-up, which has no follow-ups."""
    kept = {name: value for name, value in load(extras or "{}").items() if name not in FILLED}
    return kept or None
