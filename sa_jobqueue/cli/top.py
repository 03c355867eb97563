"""A live view of queues, tasks, workers and failed jobs: `top`. It only shows; the dashboard and other commands act.

    sa-jobqueue top
    sa-jobqueue top --once

`read_picture` reads a picture from the database, `Reader` does so repeatedly, and `frame` draws the picture.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import FrameType
from typing import Annotated, Any, NamedTuple, TypeAlias

import sqlalchemy as sa
import typer
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..health.read import QUANTILES, Figures, named
from ..health.work import QueueSeen, WorkerSeen, WorkflowCounts, Working, read_workflows, read_working
from ..rules.words import age, duration, estimated, size
from ..sql.chosen import Status
from ..sql.readings.depths import capped, capped_sum
from ..util.log import one_line
from ..util.urls import mask_passwords
from .config import Config
from .filters import Filters
from .jobs import job_line, newest_jobs
from .output import Column, cleaned, expected_errors, explained, fitted, last_part, rate
from .place import name_of, open_engine, transaction

#: The failed jobs in a picture that is printed.
_FAILURES = 10
#: The share of the time that may be spent on reading: a slow database is read less often.
_SHARE = 0.1
#: Seconds until a change of the terminal's size is noticed.
_RESIZED = 0.25
#: The lines of a terminal that has room for a line about workflows.
_ROOMY = 12
# The statistics of a queue's table are often old, and a plan based on them would read the whole table each second.
_SETTINGS = {"statement_timeout": "2s", "enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}


def top(
    config: Config,
    *,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3_600, help="Seconds between two readings of the database.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and exit, as it also does without a terminal.")
    ] = False,
) -> None:
    """Watch queues, tasks, workers and failed jobs, live.

    Ctrl-C ends it. It only shows: the dashboard acts, and so do commands such as retry and pause. It reads in read-only
    transactions, with at most 2 s a statement, and works on a replica.

    sa-jobqueue top
    sa-jobqueue top --every 5
    sa-jobqueue top --once
    """
    engine = open_engine(config)
    with transaction(config, engine.execution_options(postgresql_readonly=True)) as connection:
        seen = Seen(read_picture(connection, failures=_FAILURES), pause=every)
    name, console = name_of(engine.url), Console(highlight=False)
    if sys.stdout.isatty() and not once:
        _show(Reader(engine, seen, every=every), name, console)
    else:
        console.print(frame(seen, name=name, width=console.width))


# ---- Reading: in one transaction, without changes, and with indexes only.


class Picture(NamedTuple):
    """Everything that is shown at a time."""

    working: Working
    failures: Sequence[Any]
    """The newest failed jobs."""
    workflows: WorkflowCounts | None = None
    """None if there are no workflows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The last picture, and the problem since then."""

    picture: Picture
    took: float = 0.0
    """Seconds that the reading took."""
    pause: float = 0.0
    """Seconds until the next reading."""
    problem: str | None = None
    since: datetime | None = None


def read_picture(connection: sa.Connection, *, failures: int) -> Picture:
    """Read a picture with at most this number of failed jobs, in the connection's transaction, whose settings it changes."""
    connection.execute(sa.select(*(sa.func.set_config(name, value, True) for name, value in _SETTINGS.items())))
    working = read_working(connection)
    failed = newest_jobs(connection, Filters(status=[Status.FAILED]), failures)
    return Picture(working, failed, read_workflows(connection))


class Reader:
    """Reads repeatedly. After an error of the database it keeps the last picture and opens another connection."""

    def __init__(self, engine: sa.Engine, seen: Seen, *, every: float) -> None:
        self.seen = seen
        self._engine = engine
        self._every = every
        self._connection: sa.Connection | None = None

    def read(self, *, failures: int) -> Seen:
        """Read a new picture, or note the problem."""
        began = time.monotonic()
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(postgresql_readonly=True)
            with self._connection.begin():
                picture = read_picture(self._connection, failures=failures)
        except expected_errors() as error:
            self.close()
            problem, since = one_line(mask_passwords(explained(error))), self.seen.since or datetime.now().astimezone()
            self.seen = replace(self.seen, problem=problem, since=since, pause=self._every)
        else:
            took = time.monotonic() - began
            self.seen = Seen(picture, took, max(self._every, took / _SHARE))
        return self.seen

    def close(self) -> None:
        """Close the connection, whatever its state."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*expected_errors()):
                connection.invalidate()
            with suppress(*expected_errors()):
                connection.close()


# ---- The screen.


def _show(reader: Reader, name: str, console: Console) -> None:
    """Fill the terminal with pictures until Ctrl-C. `name`: the database's."""
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with suppress(KeyboardInterrupt), _silence(), _signals(live), live, ExitStack() as stack:
        stack.callback(reader.close)
        while True:
            until = time.monotonic() + reader.seen.pause
            shown = None
            while (left := until - time.monotonic()) > 0 or shown is None:
                # Rich would read it from COLUMNS and LINES if a shell has exported them, and these stay when the window changes.
                console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))
                if console.size != shown:
                    shown = console.size
                    live.update(frame(reader.seen, name=name, width=console.width, height=console.height), refresh=True)
                time.sleep(max(min(left, _RESIZED), 0))
            reader.read(failures=console.height)


@contextmanager
def _signals(live: Live) -> Generator[None]:
    """Restore the terminal when a signal ends the program, and while Ctrl-Z stops it."""

    def end(number: int, _: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the restoration
        raise SystemExit(128 + number)

    def stop(number: int, _: FrameType | None) -> None:
        live.stop()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # it stops here, until `fg`
        signal.signal(number, stop)
        live.start(refresh=True)

    with ExitStack() as stack:
        for number, handler in ((signal.SIGTERM, end), (signal.SIGHUP, end), (signal.SIGTSTP, stop)):
            stack.callback(signal.signal, number, signal.signal(number, handler))
        yield


@contextmanager
def _silence() -> Generator[None]:
    """Log nothing meanwhile: a line on stderr would run across the picture."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


# ---- The drawing.


def frame(seen: Seen, *, name: str, width: int, height: int | None = None) -> RenderableType:
    """Draw the screen, no wider than `width`. `name`: the database's. `height` None: without a limit."""
    header = [*_header(seen, name, height)]
    space = None if height is None else max(height - len(header), 2)
    return Group(*header, *_sections(seen.picture, width, space))


def shares(needs: Sequence[int], space: int) -> list[int]:
    """Divide `space` lines evenly among sections. No section gets more than it needs."""
    given = [0] * len(needs)
    while space > 0 and given != list(needs):
        for position, need in enumerate(needs):
            if given[position] < need and space > 0:
                given[position] += 1
                space -= 1
    return given


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _header(seen: Seen, name: str, height: int | None) -> Iterator[Text]:
    """Five lines, and a sixth if there are workflows and room."""
    working, workflows = seen.picture.working, seen.picture.workflows
    at = f"{working.now.astimezone():%H:%M:%S}"
    if seen.problem is None:
        reading = f" · read in {duration(seen.took)}, every {duration(seen.pause)} · Ctrl-C ends" if seen.took else ""
        yield _line((f"{at}  ", "bold"), name, (reading, "dim"))
    else:
        since = "" if seen.since is None else f" since {seen.since:%H:%M:%S}"
        yield _line((f"no answer{since}; this is the picture of {at}", "bold red"))
    due, queued = (capped_sum([getattr(queue, name) for queue in working.queues]) for name in ("due", "queued"))
    stale = sum(worker.stale for worker in working.workers)
    live = len(working.workers) - stale
    workers = f"{live} live worker{'' if live == 1 else 's'}{f', {stale} stale' if stale else ''}"
    yield _line(
        f"{due} due · {queued} queued · {capped(working.running)} running · ",
        (f"{capped(working.failed)} failed", "red" if working.failed else ""),
        " · ",
        (workers, "" if live else "red"),
    )
    lately = working.lately
    ended = " · ".join(f"{rate(lately.per_minute(name))} {name}" for name in named([lately]))
    yield _line("/min of the last 5: ", ended)
    yield _line(f"waited {_quantiles(lately.wait)}   ran {_quantiles(lately.run)}")
    if workflows is not None and (height is None or height >= _ROOMY):
        yield _line(
            f"workflows: {capped(workflows.running)} running · {capped(workflows.paused)} paused · ",
            (f"{capped(workflows.failed)} failed", "red" if workflows.failed else ""),
            (f" · {capped(workflows.overdue)} past their deadline" if workflows.overdue else "", "red"),
        )
    yield _line((seen.problem or "", "red"))


def _quantiles(quantile: Callable[[str], float | None]) -> str:
    return " ".join(f"{name} {_seconds(quantile(name)) or '-'}" for name in QUANTILES)


def _sections(picture: Picture, width: int, space: int | None) -> list[RenderableType]:
    """Draw the sections that have rows one below the other, with empty lines between them."""
    shown = [(section, rows) for section in _SECTIONS if (rows := section.rows(picture))]
    if space is not None:
        shown = shown[: max((space + 1) // 3, 1)]  # the sections that have room for at least a row
    if not shown:
        return [_line(("no jobs and no workers yet", "dim"))]
    needs = [len(rows) for _, rows in shown]
    given = needs if space is None else shares(needs, space - 2 * len(shown) + 1)
    body: list[RenderableType] = []
    for (section, rows), number in zip(shown, given, strict=True):
        title, *others = section.columns
        if number < len(rows):
            title = replace(title, name=f"{title.name} 1-{number} of {section.total(picture) or len(rows)}")
        cells = [[cleaned(cell) for cell in line] for line, _ in rows[:number]]
        styles = [style for _, style in rows[:number]]
        body += [fitted([title, *others], cells, styles, width, rule=False), Text()]
    return body[:-1]


#: The cells of a row, and its style.
_Row: TypeAlias = tuple[Sequence[object], str]


@dataclass(frozen=True, slots=True)
class _Section:
    columns: Sequence[Column]
    rows: Callable[[Picture], list[_Row]]
    total: Callable[[Picture], str] = lambda picture: ""
    """The number of all rows, if not all of them were read."""


def _seconds(value: float | None) -> str:
    return "" if value is None else estimated(value)


def _queue(queue: QueueSeen) -> _Row:
    lately = queue.lately
    line = (
        queue.name, capped(queue.due), age(queue.oldest), capped(queue.queued),
        f"{queue.running:,}" if queue.limit is None else f"{queue.running:,}/{queue.limit:,}", rate(lately.per_minute()),
        _seconds(lately.wait("p50")), _seconds(lately.wait("p95")), f"{lately.counts['failed']:,}",
        "no worker" if not queue.served else f"{queue.served} worker{'' if queue.served == 1 else 's'}",
        "" if queue.paused is None else f"paused {age(queue.paused, short=True)}",
    )  # fmt: skip
    unserved = queue.due and not queue.served
    return line, "red" if unserved else "yellow" if lately.counts["failed"] or queue.paused is not None else ""


def _task(name: str, lately: Figures) -> _Row:
    line = (
        name, rate(lately.per_minute()), *(_seconds(lately.run(quantile)) for quantile in ("p50", "p95", "p99")),
        _seconds(lately.wait("p95")), f"{lately.counts['retried']:,}", f"{lately.counts['failed']:,}",
    )  # fmt: skip
    return line, "yellow" if lately.counts["failed"] else ""


def _worker(worker: WorkerSeen) -> _Row:
    memory = "" if worker.memory is None else size(worker.memory)
    pressure = f"holds back: {worker.pressure}" if worker.pressure else ""
    line = (
        worker.name, " ".join(worker.queues), f"{worker.running}/{worker.slots}", memory, _seconds(worker.loop_lag),
        f"{age(worker.unseen, short=True)} ago", " · ".join(filter(None, ["stale" if worker.stale else "", pressure])),
    )  # fmt: skip
    return line, "red" if worker.stale else "yellow" if worker.pressure else ""


def _without_domain(worker: str) -> str:
    """Shorten web-1.example.org:47 to web-1:47; an address stays as it is."""
    host, colon, pid = worker.rpartition(":")
    name = host.partition(".")[0]
    return worker if name.isdigit() else f"{name}{colon}{pid}"


def _failure(row: Any) -> _Row:
    number, _, queue, task, attempt, _, when, error = job_line(row)
    return (number, queue, task, attempt, when, error), "red"


_SECTIONS = (
    _Section(
        (
            Column("QUEUES", wide=True, least=10), Column("due", "right"), Column("oldest", "right"),
            Column("queued", "right", optional=True), Column("running", "right"), Column("/min", "right"),
            Column("wait p50", "right", optional=True), Column("wait p95", "right"), Column("failed", "right"),
            Column("served by", shortened=lambda text: text.replace(" workers", "").replace(" worker", "") if text[0].isdigit() else "none"),
            Column("", wide=True, least=6),
        ),
        lambda picture: list(map(_queue, picture.working.queues)),
    ),
    _Section(
        (
            Column("TASKS", wide=True, least=10, shortened=last_part), Column("/min", "right"),
            Column("run p50", "right"), Column("run p95", "right"), Column("run p99", "right", optional=True),
            Column("wait p95", "right"), Column("retried", "right"), Column("failed", "right"),
        ),
        lambda picture: [_task(name, lately) for name, lately in picture.working.tasks],
    ),
    _Section(
        (
            Column("WORKERS", wide=True, least=12, shortened=_without_domain), Column("queues", wide=True, least=8), Column("running", "right"),
            Column("memory", "right"), Column("loop lag", "right"), Column("seen", "right"),
            Column("", wide=True, least=5),
        ),
        lambda picture: list(map(_worker, picture.working.workers)),
    ),
    _Section(
        (
            Column("FAILED"), Column("queue", wide=True, least=7), Column("task", wide=True, least=12, shortened=last_part),
            Column("attempt", "right", optional=True), Column("when"), Column("error", wide=True, least=20),
        ),
        lambda picture: list(map(_failure, picture.failures)),
        lambda picture: capped(picture.working.failed),
    ),
)  # fmt: skip
