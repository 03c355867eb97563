"""The audit; and the database: the doctor's findings, sizes of tables and indexes, and sessions that hold old snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote

import sqlalchemy as sa

from ...doctor import CHECKS, LEVELS, Examination, Finding, look_at
from ...doctor.finding import SPANS, Acknowledged, acknowledged, named
from ...health.read import Readings
from ...health.values import Holder, IndexSize, TableSize
from ...rules.words import listed
from ...sql.store import store_of
from ...statements import list_audit
from ..actions import Done, PageAction
from ..actions.jobs import is_of, undo_of
from ..database import PATIENCE
from ..refusals import BadInput
from ..request import Missing, Page, PageContext
from ..shared import Kept
from .errors import marks_of

_PAGE = 50
#: The most values of a target that are listed, and the names of values that only an undo reads.
_LISTED, _FOR_UNDO = 10, ("retained", "undo")
#: The newest entries, among which a filter searches, because it has no index.
_NEWEST = 100_000


def read_audit(context: PageContext) -> dict[str, Any]:
    """A page of the audit."""
    query, audit = context.query, context.tables.audit
    who, action, number = query.one("who"), query.one("action"), query.id("number")
    statement = list_audit(
        before=query.id("before"), who=who or None, action=action or None, limit=_PAGE + 1, job=context.job
    )
    if who or action:
        statement = statement.where(audit.id > sa.select(sa.func.max(audit.id) - _NEWEST).scalar_subquery())
    if number:
        statement = statement.where(*is_of(context, number))
    rows = context.connection.execute(statement).mappings().all()
    return {
        "undo": undo_of(context, number),
        "now": context.now(),
        "entries": [{**row, "target": _shown_target(row["target"])} for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if len(rows) > _PAGE else None,
        "filtered": bool(who or action or number),
        "searched": bool(who or action),
        "newest": _NEWEST,
    }


def _shown_target(target: Any) -> list[tuple[str, str]]:
    """The fields of the form that name the target, and their values."""
    if not isinstance(target, dict):
        return [("", str(target))]
    fields: list[tuple[str, str]] = []
    for name, given in target.items():
        if name in _FOR_UNDO:
            continue
        values = list(map(str, given)) if isinstance(given, list) else [str(given)]
        more = len(values) - _LISTED
        fields.append((str(name), ", ".join(values[:_LISTED]) + (f", … {more:,}" if more > 0 else "")))
    return fields


AUDIT = Page("audit", "Audit", "/audit", read_audit, adds_up=True, of_all_queues=True)

# ---- The doctor's findings, once a minute in a process, because some checks cost more than a page.

#: Checks of the server and of tables. The others name queues, tasks, workers or jobs, or show statements of sessions.
_OF_SERVER = frozenset((
    "database", "clock", "schema", "plans", "indexes", "dead-rows", "vacuum", "bloat", "connections", "notify-queue", "frozen-age",
    "replication",
))  # fmt: skip


#: Seconds after which no more checks begin, because a viewer waits for them.
_WHOLE = 5.0


class Examined(NamedTuple):
    """The time of an examination, and the doctor's findings, the worst first."""

    at: datetime
    findings: Sequence[Finding]


_kept: Kept[Examined] = Kept(60.0)


def examined(context: PageContext, *, stale: bool = True) -> Examined:
    """The doctor's findings; only those about the server for a viewer who may see only some queues. `stale`: they may be ten minutes old, and
    are read again once the viewer has the page.
    """
    if stale:
        found = _kept.get_stale(context, context.job, _examine)
    else:
        found = _kept.get(context.connection, context.job, lambda: _examine(context))
    if context.queues is None:
        return found
    return Examined(found.at, [finding for finding in found.findings if finding.name in _OF_SERVER])


def _examine(context: PageContext) -> Examined:
    connection, at = context.connection, context.now()
    # LISTEN and NOTIFY are not tried, because that takes two more connections.
    findings: list[Finding] = []
    until = monotonic() + _WHOLE
    for finding in look_at(Examination(connection, store=store_of(context.job)), patience=PATIENCE):
        findings.append(finding)
        if monotonic() > until:
            done = {finding.name for finding in findings}
            if left := [check.name for check in CHECKS if check.name not in done]:
                detail = f"not checked, because the other checks took longer than {_WHOLE:g} s: {listed(left)}"
                findings.append(Finding("doctor", "notice", detail, "run `sa-jobqueue doctor`"))
            break
    if connection.scalar(sa.select(sa.func.pg_is_in_recovery())):
        # A replica from which pages are read is rightly read-only.
        findings = [finding for finding in findings if finding.name != "database"]
    return Examined(at, sorted(findings, key=lambda finding: -LEVELS.index(finding.level)))


# ---- What leads from a finding to its cause and its cure, and who has acknowledged it.

_WORKERS = ("Workers", "/workers")
_TABLES, _INDEXES_BELOW = ("Tables", "/database#tables-title"), ("Indexes", "/database#indexes-title")
#: The pages with the cause and the cure of each check, below the dashboard.
_SEEN_AT: Mapping[str, Sequence[tuple[str, str]]] = {
    "workers": [_WORKERS], "leases": [_WORKERS, ("Running jobs", "/jobs?status=running")], "queues": [("Queues", "/queues"), _WORKERS],
    "tasks": [("Tasks", "/tasks"), _WORKERS], "waiting": [("Jobs that wait", "/jobs?status=due"), ("Queues", "/queues")],
    "timeouts": [("Tasks", "/tasks")], "failures": [("Errors, to retry or resolve", "/errors")], "limits": [("Limits and pauses", "/limits")],
    "unique": [_WORKERS], "schedules": [("Schedules", "/schedules")], "workflows": [("Workflows", "/workflows")],
    "signals": [("Questions", "/questions"), ("All waits for signals", "/questions?all=yes")], "cleanup": [_WORKERS, _TABLES], "archive": [("Archived jobs", "/archived"), _WORKERS], "plans": [_INDEXES_BELOW], "indexes": [_INDEXES_BELOW],
    "snapshot": [("Sessions", "/database#holders-title")], "dead-rows": [_TABLES], "vacuum": [_TABLES], "bloat": [_TABLES, _INDEXES_BELOW],
}  # fmt: skip
#: How many links to the things that a finding names are shown.
_LINKED = 5


class Alarm(NamedTuple):
    """A finding, its links (a text and an address below the dashboard), its acknowledgement, and the form that acknowledges it."""

    finding: Finding
    links: Sequence[tuple[str, str]]
    acknowledged: Acknowledged | None
    lapsed: Acknowledged | None
    """An acknowledgement that no longer holds, because the finding got worse."""
    form: Sequence[tuple[str, str]]


def alarms_of(findings: Sequence[Finding], marks: Sequence[Any]) -> list[Alarm]:
    """The findings as pages show them. Viewers of some jobs neither acknowledge findings nor are told who did, because it concerns all jobs."""
    marked, alarms = acknowledged(findings, marks), list[Alarm]()
    for finding in findings:
        mark = marked.get(finding.name)
        known, lapsed = (None, mark) if mark and mark.was else (mark, None)
        form = [
            ("check", finding.name),
            ("level", finding.level),
            ("detail", finding.detail),
            ("about", named(finding)),
        ]
        alarms.append(Alarm(finding, _links(finding), known, lapsed, form))
    return alarms


def _links(finding: Finding) -> list[tuple[str, str]]:
    places = {"schedule": "/schedules?name="}
    if finding.name == "failures":
        places["task"] = "/jobs?status=failed&task="
    things = list(dict.fromkeys(finding.about))[:_LINKED]
    return [
        *_SEEN_AT.get(finding.name, [("All checks", "/database")]),
        *((f"{kind} {name}", f"{places.get(kind, f'/{kind}s/')}{quote(name, safe='')}") for kind, name in things),
    ]


def spans_of(context: PageContext) -> list[str]:
    """The times for which the viewer may acknowledge findings."""
    return list(SPANS) if context.access.sees_all and context.access.may("acknowledge") else []


def _checked(context: PageContext, **allowed: Sequence[str]) -> Done:
    """Check the form; the entry of the audit is the mark. Raises Missing for a viewer of some jobs, and BadInput."""
    if not context.access.sees_all:
        raise Missing("There is no finding that you may acknowledge: you see only some jobs.")
    for field, values in {"check": [*(check.name for check in CHECKS), "doctor"], **allowed}.items():
        if (given := context.query.one(field)) not in values:
            raise BadInput(field, given, f"one of {', '.join(values)}")
    return Done(1, of=context.query.one("check"))


FINDING_ACTIONS = (
    PageAction(
        "acknowledge", "Acknowledge", "Acknowledged {of}: it does not count, until it gets worse or the time is over.", "acknowledge",
        lambda context: _checked(context, level=LEVELS[1:], **{"for": list(SPANS)}), target=("check", "for", "level", "detail", "about"), unit="finding",
    ),
    PageAction(
        "unacknowledge", "Take back", "It counts again: {of}.", "acknowledge", _checked, target=("check",), unit="finding",
    ),
)  # fmt: skip

#: Sizes change slowly, and reading them touches each file of the tables.
_sizes: Kept[tuple[list[TableSize], list[IndexSize]]] = Kept(15.0)
#: The most indexes and holders that are shown, the largest and the oldest.
_INDEXES, _HOLDERS = 100, 20
#: Sessions with less seconds and transactions are not shown: pages, claims and commands hold theirs for milliseconds.
_SHORT, _FEW = 5.0, 1_000
#: The most characters of a statement that are shown.
_QUERY = 300


def read_database(context: PageContext) -> dict[str, Any]:
    """The database; without its sessions for a viewer who may see only some queues."""
    connection = context.connection
    doctor = examined(context)
    readings = Readings(connection, store_of(context.job))
    tables, indexes = _sizes.get(connection, context.job, lambda: (readings.tables, readings.indexes))
    alarms = alarms_of(doctor.findings, marks_of(context))
    levels = [alarm.finding.level for alarm in alarms if alarm.acknowledged is None]
    return {
        "now": context.now(),
        "server": readings.server,
        "examined_at": doctor.at,
        "alarms": alarms,
        "levels": {level: levels.count(level) for level in ("problem", "notice", "ok")},
        "acknowledged": len(alarms) - len(levels),
        "spans": spans_of(context),
        "tables": sorted(tables, key=_size, reverse=True),
        "total": sum(map(_size, tables)),
        "indexes": sorted(indexes, key=lambda index: -index.bytes)[:_INDEXES],
        "sees_sessions": context.queues is None,
        "holders": list(filter(_lasts, readings.holders))[:_HOLDERS] if context.queues is None else [],
        "letters": _QUERY,
    }


def _size(table: TableSize) -> int:
    return table.bytes + table.index_bytes + table.toast_bytes


def _lasts(holder: Holder) -> bool:
    return holder.kind != "session" or holder.seconds is None or holder.seconds >= _SHORT or holder.xids >= _FEW


DATABASE = Page("database", "Database", "/database", read_database, adds_up=True)
