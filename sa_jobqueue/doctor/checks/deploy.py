"""Checks before a deployment: waiting tasks, versions of arguments and recorded steps that the new code does not know, and the triggers that
it needs.

The counts are complete: all jobs that have not ended are read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ...enqueueing.change_triggers import TRIGGER_NAME, trigger_names
from ...enqueueing.on_change import all_rules
from ...errors import TaskError
from ...rules.words import listed, versioned
from ...sql.claims import version_of
from ...sql.parts import table_of
from ...sql.readings.unfinished import coming_follow_ups, recorded_steps, unfinished_tasks
from ...tasks.tasks import AnyTask
from ...tasks.upcasts import newer
from ...util.log import escaped
from ..examination import Examination
from ..finding import Fault, Finding, found

#: The prefixes that some kinds of steps put before the name from the handler.
_KIND = re.compile(r"(?:signal|callback|patch):")


def check_new_tasks(examination: Examination) -> Finding:
    """Whether the application has the task of each job that has not ended, and of each active schedule, callback and follow-up."""
    known = _registry(examination)
    waiting = _waiting(examination).items()
    lost = {versioned(*which): what for which, what in waiting if known.get(which[0]) is None}
    faults: list[Fault] = []
    if lost:
        advice = "give a renamed task its old name: @task(aliases=[...]); or deploy when these jobs have ended"
        faults.append(("problem", f"the application does not have: {_told(lost)}", advice))
    return found("new-tasks", "the application has the tasks of all waiting jobs", *faults, unknown=len(lost))


def check_new_versions(examination: Examination) -> Finding:
    """Whether the application can read all waiting arguments: no version is newer than its own, and no upcaster is missing."""
    known = _registry(examination)
    late: dict[str, str] = {}
    for (task, version), what in _waiting(examination).items():
        of = known.get(task)
        if of is not None and newer(version, of.version):
            late[f"{versioned(task, version)}, and the application has version {of.version}"] = what
    faults: list[Fault] = []
    if late:
        advice = "workers of this application give such jobs back; only newer workers run them"
        faults.append(("problem", f"a newer version waits: {_told(late)}", advice))
    for task in known:
        try:
            task.upcasts.check()
        except TaskError as error:
            faults.append(("problem", str(error), "workers of this application do not start without it"))
    return found("new-versions", "the application can read the arguments of all waiting jobs", *faults, newer=len(late))


def check_new_steps(examination: Examination) -> Finding:
    """Whether the application's source mentions the recorded steps of jobs that have not ended.

    A name is mentioned if it equals a text, or matches an f-string, in the modules of the handler's package. Names that the code computes in
    another way are not found.
    """
    known, lost, steps = _registry(examination), dict[str, str](), 0
    for row in examination.connection.execute(recorded_steps(job=examination.store.job)):
        steps += 1
        task, name = known.get(row.task), _KIND.sub("", row.name, count=1)
        if task is not None and not _mentions(task, name):
            lost[f"step {name} of {row.task}"] = _jobs(row.jobs)
    faults: list[Fault] = []
    if lost:
        advice = "a step that was renamed or removed is not found again, and the new code runs in its place; keep its name, or use ctx.patched()"
        faults.append(("notice", f"the application's source does not mention: {_told(lost)}", advice))
    summary = (
        "the application's source mentions the recorded steps" if steps else "no job that has not ended has a step"
    )
    return found("new-steps", summary, *faults, steps=steps, unknown=len(lost))


def check_new_triggers(examination: Examination) -> Finding:
    """Whether the database has the triggers that the application's rules `on_change(..., via="trigger")` need, enabled, and no others."""
    needed, declared, faults = dict[str, str](), set[str](), list[Fault]()
    ours = {(id(task.registry), task.name) for task in _registry(examination)}
    for rule in all_rules("trigger"):
        is_ours = (id(rule.task.registry), rule.task.name) in ours
        try:
            names = trigger_names(rule)
        except TaskError as error:
            if is_ours:
                faults.append(("problem", str(error), 'use via="session", or another column'))
            continue
        declared.update(names)
        needed |= dict.fromkeys(names if is_ours else (), str(rule))
    rows = examination.connection.execute(_TRIGGERS, {"name": TRIGGER_NAME}).all()
    enabled = {row.tgname for row in rows if row.tgenabled != "D"}
    if missing := sorted({rule for name, rule in needed.items() if name not in enabled}):
        advice = "execute the statements of on_change_sql(task), in a migration"
        faults.append(("problem", f"no trigger, or a disabled trigger: {listed(list(map(escaped, missing)))}", advice))
    if others := [f"{escaped(row.tgname)} on {escaped(row.table)}" for row in rows if row.tgname not in declared]:
        advice = "drop them, unless they belong to another application: they still enqueue jobs"
        faults.append(("notice", f"the application has no rule for triggers of on_change: {listed(others)}", advice))
    well = "the triggers of on_change are there" if needed else "the application has no triggers of on_change"
    return found("new-triggers", well, *faults, missing=len(missing), left=len(others))


_TRIGGERS = sa.text(
    "SELECT tgname, tgenabled::text, tgrelid::regclass::text AS table FROM pg_catalog.pg_trigger "
    "WHERE tgname ~ :name AND NOT tgisinternal AND tgparentid = 0 ORDER BY tgname"
)


def _registry(examination: Examination) -> Any:
    assert examination.registry is not None
    return examination.registry


def _waiting(examination: Examination) -> Mapping[tuple[str, str | None], str]:
    """The waiting jobs, schedules, callbacks and follow-ups by task and version, in words."""
    tables, connection = examination.store.tables, examination.connection
    found: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for row in connection.execute(unfinished_tasks(job=examination.store.job)):
        found[row.task, row.version].append(f"{row.jobs:,} {row.reading}")
    for row in connection.execute(coming_follow_ups(job=examination.store.job)):
        found[row.task, row.version].append(_number(row.jobs, "follow-up"))
    schedule, callback, flow = (table_of(of) for of in (tables.schedule, tables.callback, tables.workflow))
    running = sa.select(flow.c.id).where(flow.c.finished_at.is_(None))
    for kind, table, live in (
        ("schedule", schedule, schedule.c.paused_at.is_(None)),
        ("callback", callback, callback.c.fired_at.is_(None) & callback.c.workflow_id.in_(running)),
    ):
        version = version_of(table)
        counted = sa.select(table.c.task, version.label("version"), sa.func.count().label("rows")).where(live)
        for row in connection.execute(counted.group_by(table.c.task, version)):
            found[row.task, row.version].append(_number(row.rows, kind))
    return {key: ", ".join(parts) for key, parts in sorted(found.items(), key=str)}


def _told(lost: Mapping[str, str]) -> str:
    return listed([f"{escaped(name)} ({what})" for name, what in lost.items()])


def _jobs(number: int) -> str:
    return _number(number, "job")


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# ---- The texts in the source of an application.


def _mentions(task: AnyTask, name: str) -> bool:
    package = task.handler.__module__.partition(".")[0]
    modules = [module for path, module in list(sys.modules.items()) if path.partition(".")[0] == package]
    files = sorted({file for module in modules if (file := getattr(module, "__file__", None))})
    texts, patterns = _source(tuple(files))
    return name in texts or any(pattern.fullmatch(name) for pattern in patterns)


@lru_cache(64)
def _source(files: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """The texts in these files, and a pattern for each f-string that accepts any text for its values."""
    texts, patterns = set[str](), list[re.Pattern[str]]()
    for node in (node for file in files for node in _nodes(Path(file))):
        if isinstance(node, ast.JoinedStr):
            patterns.append(re.compile("".join(map(_part, node.values)), re.DOTALL))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return frozenset(texts), tuple(patterns)


def _nodes(file: Path) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError):  # a module without a source
        return


def _part(value: ast.expr) -> str:
    return re.escape(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, str) else ".*"
