"""The command `doctor`: find problems of the queue and its database, and what to do about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from ..doctor import BEFORE_DEPLOY, LEVELS, Finding, Thresholds, examine, reading
from ..doctor.examine import State, states_of
from ..doctor.finding import Acknowledged, acknowledged
from ..errors import ConfigurationError, JobQueueError
from ..sql.readings.depths import newest_marks
from ..util.log import one_line
from ..util.urls import mask_passwords
from .application import load_registry
from .config import Config, Json, duration_option
from .output import cleaned, note, print_json, say
from .place import name_database, open_engine

#: For a statement that reads all jobs that have not ended.
_DEPLOY = timedelta(minutes=1)
_ARROW = "→ "
_STYLES: dict[State, str] = {"ok": "green", "notice": "yellow", "problem": "bold red", "yours to decide": "cyan"}


def doctor(
    config: Config,
    *,
    max_wait: Annotated[
        timedelta | None, duration_option(help="A due job that has waited longer is a problem: 10m, 2h.")
    ] = None,
    checklist: Annotated[
        bool, typer.Option("--checklist", help="Show the state of each item of the production checklist instead.")
    ] = False,
    before_deploy: Annotated[
        bool,
        typer.Option(
            "--before-deploy",
            help="List the jobs that have not ended whose task, version or recorded steps the code of --app does not know.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Find problems of the queue and its database, and what to do about them.

    It checks the server, workers, waiting jobs, schedules and leases; the plans of the claim and the completion, indexes,
    vacuum, bloat, old snapshots, locks, connections and replication. With --app it also finds queued jobs whose tasks the
    application does not have. It writes nothing. Exit code 0: there are no problems, but perhaps notices; 1: there is a problem,
    which needs a person; 2: the database does not answer.

    sa-jobqueue doctor --max-wait 10m --json

    With --before-deploy it runs other checks instead. They compare the waiting jobs, and triggers, with the new code of --app.

    sa-jobqueue doctor --before-deploy --app shop
    """
    if before_deploy and not config.app:
        raise ConfigurationError("--before-deploy compares the database with new code: name it, --app shop")
    if before_deploy and checklist:
        raise ConfigurationError("--before-deploy and --checklist exclude each other: give one of them")
    thresholds = Thresholds(max_wait=None if max_wait is None else max_wait.total_seconds())
    registry = load_registry(config) if config.app else None
    tasks = None if registry is None else [name for task in registry for name in (task.name, *task.aliases)]
    engine = open_engine(config)
    try:
        with engine.connect() as connection:
            name_database(config, connection)
        if before_deploy:
            findings = examine(engine, checks=BEFORE_DEPLOY, probe=False, registry=registry, patience=_DEPLOY)
        else:
            findings = _with_acknowledgements(engine, examine(engine, thresholds=thresholds, tasks=tasks))
    except (DBAPIError, JobQueueError) as error:
        if json:
            reason = error.orig if isinstance(error, DBAPIError) else error
            _print_json([Finding("database", "problem", one_line(mask_passwords(str(reason))))], checklist=False)
        raise
    if json:
        _print_json(findings, checklist=checklist)
    elif checklist:
        note('the page "Before you trust it in production" of the documentation explains each item')
        _print_lines(
            (state, "", item.title, [f"{finding.name}: {finding.detail}. To do: {finding.advice}" for finding in bad])
            for item, state, bad in states_of(findings)
        )
    else:
        _print(findings)
    if _has_problem(findings):
        raise typer.Exit(1)


def _with_acknowledgements(engine: sa.Engine, findings: Sequence[Finding]) -> list[Finding]:
    """The findings. The detail of a finding that was acknowledged on the dashboard tells by whom, if the audit can be read."""
    known: dict[str, Acknowledged] = {}
    with suppress(DBAPIError), reading(engine) as connection:
        known = acknowledged(findings, connection.execute(newest_marks()).mappings().all())
    said = {
        name: f" (acknowledged by {mark.who} until {mark.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        + (f", but it got worse: it was {mark.was})" if mark.was else ")")
        for name, mark in known.items()
    }
    return [replace(finding, detail=finding.detail + said.get(finding.name, "")) for finding in findings]


def _has_problem(findings: Sequence[Finding]) -> bool:
    return any(finding.level == "problem" for finding in findings)


def _print_json(findings: Sequence[Finding], *, checklist: bool) -> None:
    checks: list[dict[str, Any]]
    if checklist:
        checks = [
            {
                "item": item.title,
                "state": state,
                "checks": list(item.checks),
                "findings": [finding.name for finding in bad],
            }
            for item, state, bad in states_of(findings)
        ]
    else:
        names = ("name", "level", "detail", "advice", "numbers")
        checks = [{name: getattr(finding, name) for name in names} for finding in findings]
    print_json({"ok": not _has_problem(findings), "checklist" if checklist else "checks": checks})


def _print(findings: Sequence[Finding]) -> None:
    """Print problems last, with their advice, where a person looks first."""
    ordered = sorted(findings, key=lambda finding: LEVELS.index(finding.level))
    _print_lines((found.level, found.name, found.detail, [found.advice] if found.advice else []) for found in ordered)
    counts = Counter(finding.level for finding in findings)
    notices = f" {_number(counts['notice'], 'notice')}," if counts["notice"] else ""
    say(f"{_number(counts['problem'], 'problem')},{notices} {counts['ok']} ok", "bold" if counts["problem"] else "")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _print_lines(lines: Iterable[tuple[State, str, str, list[str]]]) -> None:
    """Print the lines, each with its advice below, indented; in a pipe each text stays on one line."""
    lines = list(lines)
    console = Console(highlight=False)
    widths = max(len(state) for state, *_ in lines), max(len(name) for _, name, *_ in lines)
    if not console.is_terminal:
        for state, name, detail, below in lines:
            start = f"{state:<{widths[0]}}  " + (f"{name:<{widths[1]}}  " if widths[1] else "")
            console.print(Text("".join([start, cleaned(detail)])), soft_wrap=True)
            for advice in below:
                console.print(Text(f"{'':<{len(start)}}{_ARROW}{cleaned(advice)}"), soft_wrap=True)
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
        for advice in below:
            text.add_row(Padding(Text(f"{_ARROW}{cleaned(advice)}"), (0, 0, 0, 2)))
        grid.add_row(Text(state, style=style), *([Text(name)] if widths[1] else []), text)
    console.print(grid)
