"""The tables of `top`: columns, and the cells of each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from ...health.read import Figures
from ...health.work import QueueSeen, WorkerSeen
from ...rules.words import age, estimated, size
from ...sql.readings.depths import capped
from ..jobs import job_line
from ..output import Column, cleaned, fitted, last_part, rate
from ..schedules import SCHEDULE_COLUMNS, schedule_line, schedule_style
from .read import Picture
from .views import View


def _without_domain(worker: str) -> str:
    """web-1.example.org:47 as web-1:47; an address stays as it is."""
    host, colon, pid = worker.rpartition(":")
    name = host.partition(".")[0]
    return worker if name.isdigit() else f"{name}{colon}{pid}"


@dataclass(frozen=True, slots=True)
class Rows:
    """A table that may be longer than its place: the title of its first column is that of the whole."""

    columns: Sequence[Column]
    of: Callable[[Picture], list[tuple[Sequence[object], str]]]
    """The cells of each row, and its style."""
    total: Callable[[Picture], str] = lambda picture: ""
    """How many there are, where not all of them were read."""


def drawn(rows: Rows, picture: Picture, width: int, *, first: int, number: int, selected: int | None = None) -> Table:
    """A page of the rows, from the `first` on; the title says if there are more."""
    found = rows.of(picture)
    shown = found[first : first + number]
    styles = [style for _, style in shown]
    if selected is not None and 0 <= selected - first < len(shown):
        styles[selected - first] = f"{styles[selected - first]} reverse".strip()
    title, *others = rows.columns
    if len(shown) < len(found):
        title = replace(
            title, name=f"{title.name} {first + 1}-{first + len(shown)} of {rows.total(picture) or len(found)}"
        )
    cells = [[cleaned(cell) for cell in line] for line, _ in shown]
    return fitted([title, *others], cells, styles, width, rule=False)


def _seconds(value: float | None) -> str:
    return "" if value is None else estimated(value)


def _queue(one: QueueSeen) -> tuple[Sequence[object], str]:
    lately = one.lately
    line = (
        one.name, capped(one.due), age(one.oldest), capped(one.queued), _of_limit(one), rate(lately.per_minute()),
        _seconds(lately.wait("p50")), _seconds(lately.wait("p95")), f"{lately.counts['failed']:,}",
        "no worker" if not one.served else f"{one.served} worker{'' if one.served == 1 else 's'}",
        "" if one.paused is None else f"paused {age(one.paused, short=True)}",
    )  # fmt: skip
    unserved = one.due and not one.served
    return line, "red" if unserved else "yellow" if lately.counts["failed"] or one.paused is not None else ""


def _of_limit(one: QueueSeen) -> str:
    """How many run, of how many that may."""
    return f"{one.running:,}" if one.limit is None else f"{one.running:,}/{one.limit:,}"


def _task(name: str, lately: Figures) -> tuple[Sequence[object], str]:
    line = (
        name, rate(lately.per_minute()), *(_seconds(lately.run(quantile)) for quantile in ("p50", "p95", "p99")),
        _seconds(lately.wait("p95")), f"{lately.counts['retried']:,}", f"{lately.counts['failed']:,}",
    )  # fmt: skip
    return line, "yellow" if lately.counts["failed"] else ""


def _worker(one: WorkerSeen) -> tuple[Sequence[object], str]:
    memory = "" if one.memory is None else size(one.memory)
    note = " · ".join([*(["stale"] if one.stale else []), *([f"holds back: {one.pressure}"] if one.pressure else [])])
    line = (
        one.name, " ".join(one.queues), f"{one.running}/{one.slots}", memory, _seconds(one.loop_lag),
        f"{age(one.unseen, short=True)} ago", note,
    )  # fmt: skip
    return line, "red" if one.stale else "yellow" if one.pressure else ""


def _failure(row: Any) -> tuple[Sequence[object], str]:
    number, _, queue, task, attempt, _, when, error = job_line(row)
    return (number, queue, task, attempt, when, error), "red"


TABLES = {
    "queues": Rows(
        (
            Column("QUEUES", wide=True, least=10), Column("due", "right"), Column("oldest", "right"),
            Column("queued", "right", optional=True), Column("running", "right"), Column("/min", "right"),
            Column("wait p50", "right", optional=True), Column("wait p95", "right"), Column("failed", "right"),
            Column("served by", shortened=lambda said: said.replace(" workers", "").replace(" worker", "") if said[0].isdigit() else "none"),
            Column("", wide=True, least=6),
        ),
        lambda picture: [_queue(one) for one in picture.queues],
    ),
    View.TASKS: Rows(
        (
            Column("TASKS", wide=True, least=10, shortened=last_part), Column("/min", "right"),
            Column("run p50", "right"), Column("run p95", "right"), Column("run p99", "right", optional=True),
            Column("wait p95", "right"), Column("retried", "right"), Column("failed", "right"),
        ),
        lambda picture: [_task(name, lately) for name, lately in picture.tasks],
    ),
    View.WORKERS: Rows(
        (
            Column("WORKERS", wide=True, least=12, shortened=_without_domain), Column("queues", wide=True, least=8), Column("running", "right"),
            Column("memory", "right"), Column("loop lag", "right"), Column("seen", "right"),
            Column("", wide=True, least=5),
        ),
        lambda picture: [_worker(one) for one in picture.workers],
    ),
    View.FAILED: Rows(
        (
            Column("FAILED"), Column("queue", wide=True, least=7), Column("task", wide=True, least=12, shortened=last_part),
            Column("attempt", "right", optional=True), Column("when"), Column("error", wide=True, least=20),
        ),
        lambda picture: [_failure(row) for row in picture.failures],
        lambda picture: capped(picture.failed),
    ),
    View.SCHEDULES: Rows(
        (replace(SCHEDULE_COLUMNS[0], name="SCHEDULES"), *SCHEDULE_COLUMNS[1:]),
        lambda picture: [(schedule_line(row), schedule_style(row)) for row in picture.schedules or ()],
    ),
}  # fmt: skip
