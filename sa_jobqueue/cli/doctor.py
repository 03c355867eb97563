"""Is all well, and what is to be done? `doctor` asks the database one question after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from ..doctor import LEVELS, Finding, Level, Thresholds, examine
from ..doctor.examine import State, states_of
from ..errors import JobQueueError
from ..util.log import one_line
from ..util.urls import mask_passwords
from .application import load_registry
from .config import Config, Json, parse_duration
from .output import cleaned, note, print_json, say
from .place import name_database, open_engine

_ARROW = "→ "
_STYLES: dict[State, str] = {"ok": "green", "notice": "yellow", "problem": "bold red", "yours to decide": "cyan"}


def doctor(
    config: Config,
    *,
    max_wait: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=parse_duration, help="A due job that has waited longer is a problem: 10m, 2h."
        ),
    ] = None,
    checklist: Annotated[
        bool, typer.Option("--checklist", help="Show the state of each item of the production checklist instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Find out what is wrong with the queue and its database, and what to do.

    It looks at the server, workers, waiting jobs, schedules and leases; at the plans of the claim and the completion, indexes,
    vacuum, bloat, old snapshots, locks, connections and replication. With --app it also finds queued jobs whose tasks that
    application does not have. It writes nothing. Exit code 0: all is well, or there are notices; 1: there is a problem, which
    needs a person; 2: the database does not answer.

    sa-jobqueue doctor --max-wait 10m --json
    """
    thresholds = Thresholds(max_wait=None if max_wait is None else max_wait.total_seconds())
    tasks = [name for task in load_registry(config) for name in (task.name, *task.aliases)] if config.app else None
    engine = open_engine(config)
    try:
        with engine.connect() as connection:
            name_database(config, connection)
        findings = examine(engine, thresholds=thresholds, tasks=tasks)
    except (DBAPIError, JobQueueError) as error:
        if json:
            reason = error.orig if isinstance(error, DBAPIError) else error
            _print_json([Finding("database", "problem", one_line(mask_passwords(str(reason))))])
        raise
    match json, checklist:
        case True, True:
            _print_checklist_json(findings)
        case True, False:
            _print_json(findings)
        case False, True:
            _print_checklist(findings)
        case _:
            _print(findings)
    if _has_problem(findings):
        raise typer.Exit(1)


def _has_problem(findings: Sequence[Finding]) -> bool:
    return any(finding.level == "problem" for finding in findings)


def _print_json(findings: Sequence[Finding]) -> None:
    checks = [{**asdict(finding), "numbers": dict(finding.numbers)} for finding in findings]
    print_json({"ok": not _has_problem(findings), "checks": checks})


def _print_checklist_json(findings: Sequence[Finding]) -> None:
    items = [
        {"item": item.title, "state": state, "checks": list(item.checks), "findings": [one.name for one in ill]}
        for item, state, ill in states_of(findings)
    ]
    print_json({"ok": not _has_problem(findings), "checklist": items})


def _print(findings: Sequence[Finding]) -> None:
    """What is not well comes last, with its advice, where a person looks first."""
    _print_lines(
        [
            (one.level, one.name, one.detail, [one.advice] if one.advice else [])
            for one in sorted(findings, key=lambda one: LEVELS.index(one.level))
        ]
    )
    number: dict[Level, int] = {level: sum(one.level == level for one in findings) for level in LEVELS}
    say(_summary(number), "" if number["problem"] == 0 else "bold")


def _summary(number: dict[Level, int]) -> str:
    said = [f"{number['problem']} problem{'' if number['problem'] == 1 else 's'}"]
    said += [f"{number['notice']} notice{'' if number['notice'] == 1 else 's'}"] if number["notice"] else []
    return f"{', '.join(said)}, {number['ok']} ok"


def _print_checklist(findings: Sequence[Finding]) -> None:
    note('the page "Before you trust it in production" of the documentation explains each item')
    _print_lines(
        [
            (state, "", item.title, [f"{one.name}: {one.detail}. To do: {one.advice}" for one in ill])
            for item, state, ill in states_of(findings)
        ]
    )


def _print_lines(lines: Sequence[tuple[State, str, str, list[str]]]) -> None:
    """A line for each, and below it what to do, indented; in a pipe each on one line."""
    console = Console(highlight=False)
    names = [name for _, name, _, _ in lines]
    widths = max(len(state) for state, *_ in lines), max(map(len, names))
    if not console.is_terminal:
        for state, name, detail, below in lines:
            start = f"{state:<{widths[0]}}  " + (f"{name:<{widths[1]}}  " if widths[1] else "")
            console.print(Text("".join([start, cleaned(detail)])), soft_wrap=True)
            for one in below:
                console.print(Text(f"{'':<{len(start)}}{_ARROW}{cleaned(one)}"), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=widths[0])
    if widths[1]:
        grid.add_column(width=widths[1])
    grid.add_column(ratio=1)
    for state, name, detail, below in lines:
        style = _STYLES[state]
        text: Any = Table.grid()
        text.add_row(Text(cleaned(detail), style="" if state in {"ok", "yours to decide"} else style))
        for one in below:
            text.add_row(Padding(Text(f"{_ARROW}{cleaned(one)}"), (0, 0, 0, 2)))
        grid.add_row(Text(state, style=style), *([Text(name)] if widths[1] else []), text)
    console.print(grid)
