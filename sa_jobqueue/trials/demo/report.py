"""What came of the demo: the figures, and the proof that nothing was lost and nothing was done twice.

`collect` reads what the database says, `count_plainly` does the same work in a plain loop, `judge` compares the two.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Self

import sqlalchemy as sa
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy.orm import Session

from ... import Job, JobStatus
from ...rules.words import jobs_of
from .tasks import Finding, Module, Source, SourceFile, examine


class Counts(NamedTuple):
    """What is in one file, or in many."""

    lines: int = 0
    functions: int = 0
    classes: int = 0
    imports: int = 0


def counts_of(source: Source) -> Counts:
    """Count what `examine` found in one file."""
    kinds = Counter(name.kind for name in source.names)
    return Counts(source.lines, kinds["function"], kinds["class"], kinds["import"])


def total(many: Iterable[Counts]) -> Counts:
    """Add up."""
    return Counts(*(sum(column) for column in zip(*many, strict=True)))


@dataclass(frozen=True, slots=True)
class FileResult:
    """A file, as the database has it."""

    path: str
    counts: Counts
    """What its rows say; zeros where it has none."""
    modules: int
    """Its rows in `Module`."""
    jobs: Sequence[JobStatus]
    """The states of its jobs."""
    error: str = ""
    """Why its job failed, and in which attempt if that was not the first."""

    @property
    def is_single(self) -> bool:
        """An ended job with its result: the rows of a completed job; none of a failed job."""
        match self.jobs:
            case [JobStatus.COMPLETED]:
                return self.modules == 1
            case [JobStatus.FAILED]:
                return self.modules == 0 and self.counts == Counts()
            case _:
                return False

    @property
    def failed(self) -> bool:
        """Whether (one of) its job failed."""
        return JobStatus.FAILED in self.jobs


@dataclass(frozen=True, slots=True)
class Collected:
    """The whole run, as the database has it."""

    files: Sequence[FileResult]
    retries: Mapping[str, int]
    """How many attempts failed and were followed by another, by the reason."""
    rescues: int
    rescued: frozenset[int]
    """The ids of the jobs that were rescued."""
    by_worker: Mapping[str, int]
    """How many jobs each worker brought to their end, by its id."""
    seconds: float
    """From the first claim to the last job's end."""
    seconds_until_only_rescued: float
    """From the first claim until all jobs were done that no rescue was needed for."""

    def failures(self) -> list[FileResult]:
        """The files whose job failed."""
        return [file for file in self.files if file.failed]


def collect(session: Session) -> Collected:
    """Read the results of all files and jobs."""
    jobs: dict[int, list[Job]] = {}
    for job in session.scalars(sa.select(Job).order_by(Job.id)):
        jobs.setdefault(job.args["file_id"], []).append(job)
    modules = {
        file_id: (number, lines)
        for file_id, number, lines in session.execute(
            sa.select(Module.file_id, sa.func.count(), sa.func.sum(Module.lines)).group_by(Module.file_id)
        ).tuples()
    }
    findings = {
        (file_id, kind): number
        for file_id, kind, number in session.execute(
            sa.select(Finding.file_id, Finding.kind, sa.func.count()).group_by(Finding.file_id, Finding.kind)
        ).tuples()
    }
    files: list[FileResult] = []
    for file_id, path in session.execute(sa.select(SourceFile.id, SourceFile.path).order_by(SourceFile.id)).tuples():
        number, lines = modules.get(file_id, (0, 0))
        counts = Counts(lines, *(findings.get((file_id, kind), 0) for kind in ("function", "class", "import")))
        its = jobs.get(file_id, [])
        error = next((_reason(job) for job in its if job.status is JobStatus.FAILED), "")
        files.append(FileResult(path, counts, number, [job.status for job in its], error))
    return _with_figures(files, [job for its in jobs.values() for job in its])


def _with_figures(files: list[FileResult], jobs: list[Job]) -> Collected:
    began = min((job.claimed_at for job in jobs if job.claimed_at is not None), default=None)
    return Collected(
        files,
        retries=Counter(_kind_of(entry) for job in jobs for entry in job.errors if _was_retried(entry, job)),
        rescues=sum(job.rescues for job in jobs),
        rescued=frozenset(job.id for job in jobs if job.rescues),
        by_worker=Counter(job.worker for job in jobs if job.worker is not None and job.is_finished),
        seconds=_seconds(began, jobs),
        seconds_until_only_rescued=_seconds(began, [job for job in jobs if not job.rescues]),
    )


def _seconds(began: datetime | None, jobs: list[Job]) -> float:
    ended = max((job.finished_at for job in jobs if job.finished_at is not None), default=None)
    return 0.0 if began is None or ended is None else (ended - began).total_seconds()


def _was_retried(entry: Mapping[str, object], job: Job) -> bool:
    """Whether another attempt followed; what a rescue writes down was no attempt that failed."""
    return entry["type"] != "WorkerLost" and entry["attempt"] != job.attempt


def _kind_of(entry: Mapping[str, object]) -> str:
    """The reason without what differs from file to file: numbers, and what is in brackets or quotes."""
    message = re.sub(r"\(.*?\)|\[.*?\]|'.*?'|:", "", str(entry["message"]))
    return f"{entry['type']}: {' '.join(message.split())}"


def _reason(job: Job) -> str:
    if not job.errors:
        return "no reason is kept"
    last = job.errors[-1]
    tries = f" (attempt {job.attempt} of {job.max_attempts})" if job.attempt > 1 else ""
    return f"{last['type']}: {last['message']}{tries}"


@dataclass(frozen=True, slots=True)
class Plain:
    """What a plain loop over the same files says: counts of those that parse, errors of the others."""

    counts: Mapping[str, Counts]
    errors: Mapping[str, str]


def count_plainly(paths: Iterable[str], step: Callable[[], object] = lambda: None) -> Plain:
    """Examine the files in a loop, without queue and database. `step` is called after each file."""
    counts: dict[str, Counts] = {}
    errors: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the parser thinks of other people's backslashes
        for path in paths:
            try:
                counts[path] = counts_of(examine(path))
            except (OSError, SyntaxError, ValueError, RecursionError) as error:
                errors[path] = f"{type(error).__name__}: {error}"
            step()
    return Plain(counts, errors)


class Check(NamedTuple):
    """One line of the proof: what the database says, and what it should say."""

    what: str
    database: int
    expected: int

    @property
    def holds(self) -> bool:
        """Whether both say the same."""
        return self.database == self.expected


def judge(found: Collected, plain: Plain) -> list[Check]:
    """Compare totals, then file by file: the totals could agree by chance."""
    ours, theirs = total(file.counts for file in found.files), total(plain.counts.values())
    number = len(plain.counts) + len(plain.errors)
    return [
        Check("files", len(found.files), number),
        *(Check(what, *pair) for what, pair in zip(Counts._fields, zip(ours, theirs, strict=True), strict=True)),
        Check("files that fail", len(found.failures()), len(plain.errors)),
        Check("files with exactly one result", sum(file.is_single for file in found.files), number),
        Check("files with the same result", sum(_agrees(file, plain) for file in found.files), number),
    ]


def _agrees(file: FileResult, plain: Plain) -> bool:
    if file.path in plain.errors:
        return file.failed
    return file.counts == plain.counts.get(file.path)


def disagreements(found: Collected, plain: Plain) -> list[str]:
    """The files that make a check fail, each with what is wrong."""
    wrong: list[str] = []
    for file in found.files:
        states = ", ".join(file.jobs) or "no job"
        if not file.is_single:
            wrong.append(f"{file.path}: {file.modules} results; its job is {states}")
        elif not _agrees(file, plain):
            wrong.append(
                f"{file.path}: in the database {file.error or tuple(file.counts)}, "
                f"in the loop {plain.errors.get(file.path) or tuple(plain.counts.get(file.path, ()))}"
            )
    twice = [path for path, times in Counter(file.path for file in found.files).items() if times > 1]
    missing = {*plain.counts, *plain.errors} - {file.path for file in found.files}
    return [
        *wrong,
        *(f"{path}: twice in the database" for path in twice),
        *(f"{path}: not in the database" for path in sorted(missing)),
    ]


# ---- What the reader of the demo sees: a progress bar while it runs, then the report.

_EVERY = 2.0
#: Failures and disagreements shown each; a code base of another language would have thousands.
_MOST = 20


class Role(NamedTuple):
    """A worker of this run, and what was special about it."""

    worker: str
    pid: int
    note: str


class Screen:
    """Bars with a name each, and lines with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = monotonic()
        self._said = 0.0
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("  {task.description:<9}"), BarColumn(bar_width=40), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"), console=console, disable=not console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, what: str, style: str = "") -> None:
        """Tell of an event, above the bars."""
        self._console.print(Text(f"  {monotonic() - self._began:5.1f} s  {what}", style=style), highlight=False)

    def move(self, bar: str, done: int, of: int, note: str = "") -> None:
        """Move a bar; where there is none to be seen, say it, but not too often."""
        if bar not in self._bars:
            self._bars[bar] = self._progress.add_task(bar, total=of, note=note)
        self._progress.update(self._bars[bar], completed=done, note=note)
        if self._progress.disable and monotonic() - self._said >= _EVERY and done < of:
            self._said = monotonic()
            self.say(f"{bar} {done:,} of {of:,}{note and ', '}{note}")


def show_figures(console: Console, found: Collected, roles: Iterable[Role]) -> None:
    """How fast it went, who did it, and what went wrong on the way."""
    jobs = sum(len(file.jobs) for file in found.files)
    speed = f"{jobs:,} in {found.seconds:.1f} s: {_rate(jobs, found.seconds)} per second"
    waited = found.seconds - found.seconds_until_only_rescued
    if waited >= 0.5:
        speed += f"\n{waited:.1f} s of it went by waiting for the lease of the killed worker"
    lines = [
        ("jobs", speed),
        *((f"worker {role.pid}", _share(found, role)) for role in roles),
        ("retries", _retries(found)),
        ("rescues", f"{found.rescues:,}" + (": what the killed worker held was run again by the others" if found.rescues else "")),
        ("failures", f"{len(found.failures()):,}"),
    ]  # fmt: skip
    _title(console, "What happened")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan")
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(Text(name), Text(value))
    _indented(console, grid)


def show_failures(console: Console, failures: Sequence[FileResult], root: Path) -> None:
    """The files whose job failed, and why."""
    if not failures:
        return
    _title(console, "Failures: what does not parse, or cannot be read")
    table = _table(Column("file", style="yellow", overflow="fold", max_width=45), Column("reason", overflow="fold"))
    for file in failures[:_MOST]:
        table.add_row(Text(_short(file.path, root)), Text(_without_file(file)))
    _indented(console, table)
    _and_more(console, len(failures))


def show_proof(console: Console, checks: Iterable[Check], wrong: Sequence[str]) -> None:
    """The database's results compared with a plain loop's; `wrong`: where they differ."""
    _title(console, "The proof: the same files, examined again in a plain loop")
    table = _table(Column(), Column("database", justify="right"), Column("expected", justify="right"), Column())
    for check in checks:
        verdict = Text("same", style="green") if check.holds else Text("DIFFERENT", style="bold red")
        table.add_row(check.what, f"{check.database:,}", f"{check.expected:,}", verdict)
    _indented(console, table)
    for line in wrong[:_MOST]:
        console.print(Text(f"  {line}", style="red"))
    _and_more(console, len(wrong))


def show_verdict(console: Console, *, proved: bool, rescued: bool) -> None:
    """The last line. `rescued`: whether the rescue of a killed worker's jobs was a part of it."""
    if not proved:
        console.print("\n  The proof fails: the database does not say what it should.\n", style="bold red")
        return
    console.print("\n  Nothing was lost, and nothing was done twice.", style="bold green")
    if not rescued:
        console.print(
            "  But no worker was killed at work: there was too little to do. That a rescue loses nothing is not shown.",
            style="yellow", soft_wrap=True,
        )  # fmt: skip
    console.print()


def _share(found: Collected, role: Role) -> str:
    return f"{jobs_of(found.by_worker.get(role.worker, 0))}{role.note and '; '}{role.note}"


def _retries(found: Collected) -> str:
    reasons = [f"{number:,} after {reason}" for reason, number in Counter(found.retries).most_common(3)]
    return "; ".join(reasons) or "0"


def _title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(f"  {title}", style="bold"))


def _table(*columns: Column) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="dim", show_edge=False)


def _indented(console: Console, table: Table) -> None:
    console.print(Padding(table, (0, 0, 0, 4)), highlight=False)


def _and_more(console: Console, number: int) -> None:
    if number > _MOST:
        console.print(f"    … and {number - _MOST:,} more", style="dim", highlight=False)


def _short(path: str, root: Path) -> str:
    file = Path(path)
    return str(file.relative_to(root)) if file.is_relative_to(root) else f"{file.parent.name}/{file.name}"


def _without_file(file: FileResult) -> str:
    """The error without the file's name, which is shown next to it."""
    return re.sub(rf" \({re.escape(Path(file.path).name)}, (line \d+)\)", r", \1", file.error)


def _rate(number: int, seconds: float) -> str:
    return f"{number / seconds:,.0f}" if seconds > 0 else "-"
