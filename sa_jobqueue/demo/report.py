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
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus

from .tasks import Finding, Module, Source, SourceFile, examine

__all__ = [
    "Check",
    "Collected",
    "Counts",
    "FileResult",
    "Plain",
    "collect",
    "count_plainly",
    "disagreements",
    "judge",
    "total",
]


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
    """What the database says of one file."""

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
        """One job, at its end, and one result: the rows of a completed job, or a failed one that left none."""
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
    """What the database says of the whole run."""

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

    def largest(self) -> list[FileResult]:
        """The ten files with most lines."""
        return sorted(self.files, key=lambda file: (-file.counts.lines, file.path))[:10]


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
    """Examine each file, one after another: no queue, no database. `step` is called after each."""
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
