"""The database below the queue: what the doctor finds, how large tables and indexes are, and who holds old snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

import sqlalchemy as sa

from ...doctor import CHECKS, LEVELS, Examination, Finding, look_at
from ...health.read import Readings
from ...health.values import Holder, IndexSize, TableSize
from ...rules.words import listed
from ...sql.store import store_of
from ...statements import list_audit
from ..database import PATIENCE
from ..request import Page, PageContext
from ..shared import Kept

_PAGE = 50
#: Values of a target that are named.
_NAMED = 10
#: No index finds an entry by these; so it is looked for among this number, the newest.
_NEWEST = 100_000


def read_audit(context: PageContext) -> dict[str, Any]:
    """A page of entries."""
    query, audit = context.query, context.options.beside.audit
    who, action = query.one("who"), query.one("action")
    statement = list_audit(
        before=query.id("before"), who=who or None, action=action or None, limit=_PAGE + 1, job=context.job
    )
    if who or action:
        statement = statement.where(audit.id > sa.select(sa.func.max(audit.id) - _NEWEST).scalar_subquery())
    rows = context.connection.execute(statement).mappings().all()
    return {
        "now": context.connection.scalar(sa.select(sa.func.now())),
        "entries": [{**row, "target": _said(row["target"])} for row in rows[:_PAGE]],
        "before": rows[_PAGE - 1]["id"] if len(rows) > _PAGE else None,
        "filtered": bool(who or action),
        "newest": _NEWEST,
    }


def _said(target: Any) -> list[tuple[str, str]]:
    """What it was done to: each field of the form, and its values."""
    if not isinstance(target, dict):
        return [("", str(target))]
    found = []
    for name, given in target.items():
        values = [str(one) for one in given] if isinstance(given, list) else [str(given)]
        more = len(values) - _NAMED
        found.append((str(name), ", ".join(values[:_NAMED]) + (f", … {more:,}" if more > 0 else "")))
    return found


AUDIT = Page("audit", "Audit", "/audit", read_audit, adds_up=True, of_all_queues=True)

# ---- What the doctor finds, once a minute in a process: some of its checks cost more than a page does.

#: Checks of the server and of tables as such. The others name queues, tasks, workers or jobs, or what sessions of the database do.
_OF_SERVER = frozenset(
    (
        "database", "clock", "schema", "plans", "indexes", "dead-rows", "vacuum", "bloat", "connections", "notify-queue", "frozen-age",
        "replication",
    )
)  # fmt: skip


#: Seconds after which no further check is made: a viewer waits for them.
_WHOLE = 5.0


@dataclass(frozen=True, slots=True)
class Examined:
    """When the doctor looked, and what it found, the worst first."""

    at: datetime
    findings: Sequence[Finding]

    @property
    def alarms(self) -> list[Finding]:
        """What is not well."""
        return [one for one in self.findings if one.level != "ok"]


_kept: Kept[Examined] = Kept(60.0)


def examined(context: PageContext) -> Examined:
    """What it found. A viewer who may see some queues alone gets what is said of the server."""
    found = _kept.get(context.connection, context.job, lambda: _examine(context))
    if context.queues is None:
        return found
    return Examined(found.at, [one for one in found.findings if one.name in _OF_SERVER])


def _examine(context: PageContext) -> Examined:
    connection = context.connection
    at = connection.scalar(sa.select(sa.func.now()))
    # LISTEN and NOTIFY are not tried: that takes two more connections.
    findings: list[Finding] = []
    until = monotonic() + _WHOLE
    for finding in look_at(Examination(connection, store=store_of(context.job)), patience=PATIENCE):
        findings.append(finding)
        if monotonic() > until:
            left = [check.name for check in CHECKS if check.name not in {one.name for one in findings}]
            said = f"not looked at, because the other checks took longer than {_WHOLE:g} s: {listed(left)}"
            findings += [Finding("doctor", "notice", said, "run `sa-jobqueue doctor`")] if left else []
            break
    if connection.scalar(sa.select(sa.func.pg_is_in_recovery())):
        # A replica that pages are read from is read-only, and that is well.
        findings = [one for one in findings if one.name != "database"]
    assert at is not None
    return Examined(at, sorted(findings, key=lambda one: -LEVELS.index(one.level)))


#: Sizes change slowly; to ask for them touches each file of the tables.
_sizes: Kept[tuple[list[TableSize], list[IndexSize]]] = Kept(15.0)
#: Indexes and holders that are shown, the largest and the oldest.
_INDEXES, _HOLDERS = 100, 20
#: Seconds and transactions up to which a session is not worth a line: pages, claims and commands hold theirs for milliseconds.
_SHORT, _FEW = 5.0, 1_000
#: Characters of a statement that are shown.
_QUERY = 300


def read_database(context: PageContext) -> dict[str, Any]:
    """All of it. A viewer who may see some queues alone is not shown what sessions of the database do."""
    connection = context.connection
    doctor = examined(context)
    readings = Readings(connection, store_of(context.job))
    tables, indexes = _sizes.get(connection, context.job, lambda: (readings.tables, readings.indexes))
    levels = [one.level for one in doctor.findings]
    return {
        "now": connection.scalar(sa.select(sa.func.now())),
        "server": readings.server,
        "looked": doctor.at,
        "findings": doctor.findings,
        "levels": {level: levels.count(level) for level in ("problem", "notice", "ok")},
        "tables": sorted(tables, key=lambda one: -(one.bytes + one.index_bytes + one.toast_bytes)),
        "total": sum(one.bytes + one.index_bytes + one.toast_bytes for one in tables),
        "indexes": sorted(indexes, key=lambda one: -one.bytes)[:_INDEXES],
        "sees_sessions": context.queues is None,
        "holders": [one for one in readings.holders if _lasts(one)][:_HOLDERS] if context.queues is None else [],
        "letters": _QUERY,
    }


def _lasts(holder: Holder) -> bool:
    return holder.kind != "session" or holder.seconds is None or holder.seconds >= _SHORT or holder.xids >= _FEW


DATABASE = Page("database", "Database", "/database", read_database, adds_up=True)
