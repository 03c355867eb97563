"""One job as lines: what `show` says of it, in short."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from rich.cells import chop_cells
from rich.text import Text

from ...health.one_job import JobSeen
from ...rules.failures import error_text, moment_said
from ...rules.words import age
from ...util.urls import mask_passwords, masked
from ..output import cleaned, moment

_TIMES = {
    "created_at": "enqueued",
    "run_at": "due",
    "claimed_at": "claimed",
    "lease_expires_at": "lease ends",
    "cancel_requested_at": "cancel asked",
    "finished_at": "finished",
    "purge_at": "kept until",
}
_VALUES = {"args": "arguments", "meta": "meta", "result": "result"}
#: Of arguments, or a result, that are longer there is only the beginning: `show` has all.
_MOST = 10_000


def job_lines(seen: JobSeen, width: int) -> list[Text]:
    """The lines; one that is longer than `width` goes on in the next."""
    return [
        Text(part, style=style, no_wrap=True)
        for text, style in _lines(seen)
        for part in chop_cells(text, width) or [""]
    ]


def _lines(seen: JobSeen) -> Iterator[tuple[str, str]]:
    job = seen.job
    yield f"job {job.id}  {cleaned(job.task)}  {seen.reading}", "bold"
    yield f"queue {cleaned(job.queue)} · priority {job.priority} · attempt {job.attempt} of {job.max_attempts} · rescued {job.rescues}×", ""  # fmt: skip
    if job.worker is not None:
        yield f"worker {cleaned(job.worker)}", ""
    for name, title in _TIMES.items():
        if (time := getattr(job, name)) is not None:
            distance = age((seen.now - time).total_seconds())
            yield f"{title:<13} {moment(time)}  ({f'in {distance}' if time > seen.now else f'{distance} ago'})", ""
    if job.args is None or job.meta is None or job.errors is None:
        yield f"it has arguments or errors too long for this view: sa-jobqueue show {job.id}", "yellow"
    # The application may have written there, too: what is no entry of an attempt is shown as it is.
    errors = job.errors or []
    errors = errors if isinstance(errors, list) else [errors]
    last, earlier = errors[-1:], errors[-2::-1]
    yield from _errors(last)  # before what may fill the screen
    for name, title in _VALUES.items():
        if (value := getattr(job, name)) not in (None, {}):
            yield from _value(title, value)
    yield from _errors(earlier)


def _value(title: str, value: object) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield title, "bold"
    for line in json.dumps(masked(value), indent=2, ensure_ascii=False)[:_MOST].split("\n"):
        yield cleaned(line), ""


def _errors(errors: list[Any]) -> Iterator[tuple[str, str]]:
    for error in errors:
        yield from _error(cast(dict[str, Any], error)) if isinstance(error, dict) else _value("error", error)


def _error(error: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "", ""
    at = moment(moment_said(error.get("at")))
    yield f"attempt {cleaned(error.get('attempt', '?'))}  {at}".rstrip(), "bold"
    for line in mask_passwords(error_text(error.get("type"), error.get("message"))).split("\n"):
        yield cleaned(line), "red"
    for line in mask_passwords(str(error.get("traceback") or "")).rstrip().split("\n"):
        yield f"  {cleaned(line.expandtabs(4))}", "dim"
