"""What the reader of the demo sees: a progress bar while it runs, then the report.

In a terminal the bar moves; elsewhere there is a plain line every two seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from .report import Check, Collected, Counts, FileResult

__all__ = [
    "Role", "Screen", "jobs_of", "show_failures", "show_figures", "show_largest", "show_proof", "show_verdict",
]  # fmt: skip

_EVERY = 2.0
#: Failures and disagreements shown one by one; a code base of another language would have thousands.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def jobs_of(number: int) -> str:
    """A number of jobs in words."""
    return f"{number:,} job{'' if number == 1 else 's'}"


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


def show_largest(console: Console, largest: Iterable[FileResult], root: Path) -> None:
    """The largest modules."""
    _title(console, "The ten largest modules")
    numbers = (Column(name, justify="right") for name in Counts._fields)
    table = _table(Column("file", style="cyan", overflow="fold"), *numbers)
    for file in largest:
        table.add_row(Text(_short(file.path, root)), *(f"{number:,}" for number in file.counts))
    _indented(console, table)


def show_proof(console: Console, checks: Iterable[Check], wrong: Sequence[str]) -> None:
    """What the database says beside what a plain loop says; `wrong`: where they differ."""
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
    """The error without the name of the file, which stands beside it."""
    return re.sub(rf" \({re.escape(Path(file.path).name)}, (line \d+)\)", r", \1", file.error)


def _rate(number: int, seconds: float) -> str:
    return f"{number / seconds:,.0f}" if seconds > 0 else "-"
