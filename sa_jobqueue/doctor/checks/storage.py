"""The tables: dead rows, vacuum, bloat, indexes, sequences, transaction ids, the archive, and the plans of statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ...health.values import IndexSize, TableSize
from ...models import Base, JobMixin, LimitRow
from ...rules.words import age, listed, size
from ...sql.archived import archive_months, archive_needs
from ...sql.claims import claim_jobs, due_jobs
from ...sql.complete import complete_jobs, delete_completed
from ..examination import Examination
from ..finding import LEVELS, Fault, Finding, Level, beyond, found
from ..plans import Reading, planned_as_worker, readings

_OF_PRIMARY = "this is a standby: the primary counts its rows"


def _shown(rows: int) -> str:
    return f"{rows:,} dead row{'' if rows == 1 else 's'}"


def check_dead_rows(examination: Examination) -> Finding:
    """Deleted or replaced rows that vacuum has not removed."""
    if examination.server.in_recovery:
        return Finding("dead-rows", "ok", _OF_PRIMARY)
    faults: list[Fault] = []
    for table in examination.tables:
        level = beyond(table.dead, examination.thresholds.dead_rows)
        if level != "ok":
            advice = f"see the checks `snapshot` and `vacuum`; then `VACUUM {examination.table(table.name)}`"
            faults.append((level, f"{table.name} has {_shown(table.dead)} and {table.live:,} live rows", advice))
    dead = sum(table.dead for table in examination.tables)
    return found("dead-rows", f"{_shown(dead)} in all tables", *faults, rows=dead)


def check_vacuum(examination: Examination) -> Finding:
    """Whether autovacuum is on, and runs."""
    if examination.server.in_recovery:
        return Finding("vacuum", "ok", _OF_PRIMARY)
    faults: list[Fault] = []
    if not examination.server.autovacuum:
        advice = "`ALTER SYSTEM SET autovacuum = on`, then `SELECT pg_reload_conf()`"
        faults.append(("problem", "autovacuum is off on this server", advice))
    for table in examination.tables:
        name = examination.table(table.name)
        if not table.autovacuum:
            advice = f"`ALTER TABLE {name} RESET (autovacuum_enabled)`"
            faults.append(("problem", f"autovacuum is off for {table.name}", advice))
        elif table.dead >= 2 * table.vacuum_at(examination.server.settings) and _long_ago(table, examination):
            last = "was never vacuumed" if table.since_vacuum is None else f"was vacuumed {age(table.since_vacuum)} ago"
            advice = f"`VACUUM (VERBOSE) {name}` shows why; allow autovacuum more workers or a higher cost limit"
            faults.append(("problem", f"{table.name} {last}, and has {_shown(table.dead)}", advice))
    jobs = _jobs(examination)
    since = None if jobs is None else jobs.since_vacuum
    summary = "autovacuum is on; job was " + ("not vacuumed yet" if since is None else f"vacuumed {age(since)} ago")
    return found("vacuum", summary, *faults, seconds=since)


def _long_ago(table: TableSize, examination: Examination) -> bool:
    if table.since_vacuum is not None:
        return table.since_vacuum > examination.thresholds.vacuum_age
    began = examination.since_first_job
    return began is None or began > examination.thresholds.first_vacuum


def _jobs(examination: Examination) -> TableSize | None:
    name = examination.store.job.__tablename__
    return next((table for table in examination.tables if table.name == name), None)


def check_bloat(examination: Examination) -> Finding:
    """Space of tables and indexes without live rows, estimated from the statistics of the last analyze."""
    if examination.server.in_recovery:
        return Finding("bloat", "ok", _OF_PRIMARY)
    limits = examination.thresholds
    faults: list[Fault] = []
    measured: list[TableSize | IndexSize] = [*examination.tables, *examination.indexes]
    for relation in measured:
        if not relation.needed_bytes or relation.bloat_bytes < limits.bloat_bytes[0]:
            continue
        ratio = relation.bytes / relation.needed_bytes
        both = beyond(ratio, limits.bloat_ratio), beyond(relation.bloat_bytes, limits.bloat_bytes)
        level = LEVELS[min(map(LEVELS.index, both))]
        if level == "ok":
            continue
        name = examination.table(relation.name)
        is_table = isinstance(relation, TableSize)
        advice = f"`REINDEX INDEX CONCURRENTLY {name}`"
        if is_table:
            advice = f"when the workers are stopped: `VACUUM FULL {name}`; or pg_repack"
        detail = f"{relation.name} has {size(relation.bytes)}, {ratio:.0f} times the estimated need of its rows"
        faults.append((level, detail, advice))
    total = sum(table.bytes + table.index_bytes + table.toast_bytes for table in examination.tables)
    wasted = sum(relation.bloat_bytes for relation in measured)
    summary = f"tables and indexes have {size(total)}, with an estimated bloat of {size(wasted)}"
    return found("bloat", summary, *faults, bytes=total, wasted=wasted)


def check_indexes(examination: Examination) -> Finding:
    """Whether each index exists and is valid."""
    ours = {
        table.name: {
            f"{table.name}_pkey",
            *(str(index.name) for index in table.indexes),
            *(
                str(constraint.name)
                for constraint in table.constraints
                if constraint.__visit_name__ == "unique_constraint"
            ),
        }
        for table in Base.metadata.tables.values()
    }
    there = {index.name for index in examination.indexes}
    tables = {table.name for table in examination.tables}
    missing = sorted(name for table in tables & ours.keys() for name in ours[table] - there)
    invalid = [index for index in examination.indexes if not (index.valid and index.ready)]
    faults: list[Fault] = []
    if missing:
        advice = "recreate it: `sa-jobqueue migrate --sql` shows its CREATE INDEX; add CONCURRENTLY"
        faults.append(("problem", f"missing: {listed(missing)}", advice))
    for index in invalid:
        if index.building:
            faults.append(("notice", f"{index.name} is being built", "wait for the end of CREATE INDEX CONCURRENTLY"))
            continue
        name = examination.table(index.name)
        expected = index.name in ours.get(index.table, set())
        advice = f"`REINDEX INDEX CONCURRENTLY {name}`" if expected else f"`DROP INDEX CONCURRENTLY {name}`"
        faults.append(("problem", f"{index.name} is not valid: it is written, and never read", advice))
    claim = next((index for index in examination.indexes if index.name == "job_claim_idx"), None)
    total = sum(index.bytes for index in examination.indexes)
    summary = f"all {len(there)} exist and are valid" + (f"; job_claim_idx has {size(claim.bytes)}" if claim else "")
    return found("indexes", summary, *faults, bytes=total, missing=len(missing), invalid=len(invalid))


def check_sequences(examination: Examination) -> Finding:
    """Whether the next id of each table is new. Logical replication and a restore of rows leave sequences behind."""
    faults: list[Fault] = []
    for sequence in examination.next_ids:
        if sequence.next <= sequence.highest:
            name = examination.table(sequence.table)
            text = name.replace("'", "''")
            advice = f"`SELECT setval(pg_get_serial_sequence('{text}', 'id'), max(id) + 100000) FROM {name}`"  # noqa: S608
            detail = f"the next id of {sequence.table} is {sequence.next:,}, and its highest id is {sequence.highest:,}: INSERTs fail"
            faults.append(("problem", detail, advice))
    return found("sequences", "the next id of each table is new", *faults, behind=len(faults))


def check_frozen_age(examination: Examination) -> Finding:
    """The age of the oldest row in transactions: the server stops before it overflows."""
    server, limits = examination.server, examination.thresholds.frozen_age
    oldest = max((table.frozen_age for table in examination.tables), default=0)
    faults: list[Fault] = []
    for transactions, what, command in (
        (oldest, "the oldest row of the queue's tables", "VACUUM (FREEZE) of the table that is oldest"),
        (server.frozen_age, "the oldest row of this database", "`vacuumdb --all --freeze`"),
    ):
        level = beyond(transactions / server.freeze_max_age, limits)
        if level != "ok":
            advice = f"end sessions that hold old snapshots (see `snapshot`), then {command}"
            faults.append(
                (level, f"{what} is {transactions:,} transactions old, and autovacuum has not frozen it", advice)
            )
            break
    summary = f"the oldest row is {server.frozen_age:,} transactions old"
    return found("frozen-age", summary, *faults, transactions=server.frozen_age, of_tables=oldest)


# ---- The archive.


def check_archive(examination: Examination) -> Finding:
    """Workers make the tables of this month and the next, if jobs of any task are archived."""
    task, connection = examination.store.tables.archived_task, examination.connection
    tasks = connection.scalar(sa.select(sa.func.count()).select_from(task)) or 0
    months = connection.execute(archive_months(schema=examination.schema)).all()
    there = {row.month for row in months}
    rows, total = sum(row.rows for row in months), sum(row.bytes for row in months)
    faults: list[Fault] = []
    if tasks:
        needs = connection.execute(archive_needs()).one()
        advice = (
            "workers make it: start one, or see its log; the owner of the schema needs the right to create tables in it"
        )
        if needs.this_month not in there:
            detail = f"there is no table for {needs.this_month}: jobs that finish in this month cannot be moved"
            faults.append(("problem", detail, advice))
        elif needs.next_month not in there:
            faults.append(("notice", f"there is no table for {needs.next_month} yet", advice))
    summary = f"jobs of {tasks:,} task name{'' if tasks == 1 else 's'} are archived"
    if not tasks:
        summary = "no task's jobs are archived"
    if months:
        summary += f"; {len(months):,} month{'' if len(months) == 1 else 's'} from {months[0].month} on have about {rows:,} jobs, {size(total)}"
    return found(
        "archive", summary, *faults, tasks=float(tasks), months=float(len(months)), rows=float(rows), bytes=float(total)
    )


# ---- The plans of the claim and of the completion: by index, or by reading the whole table.

_NOT_ALLOWED = "42501"
#: Indexes that a claim probes once, to see whether its queues have jobs with keys.
_KEYS = {"job_key_ready_idx", "job_key_later_idx"}
_CLAIM = {"job_claim_idx", "job_pkey", "unique_key_pkey", *_KEYS}
_COMPLETION = {"job_running_idx", "job_pkey", "unique_key_pkey"}
_MEND = (
    "see the check `indexes`, then `ANALYZE {table}`; restart the workers, which keep their plans; if it stays so, "
    "report it with this output"
)


def check_plans(examination: Examination) -> Finding:
    """The server's current plans, with a worker's settings. Nothing is executed."""
    good: list[str] = []
    faults: list[Fault] = []
    hidden: list[str] = []
    with planned_as_worker(examination.connection):
        for name, statement, first, allowed in _statements(examination.store.job):
            detail, bad = _judged(examination, name, statement, first, allowed)
            if bad == "notice":
                hidden.append(name)
            elif bad:
                table = examination.table(examination.store.job.__tablename__)
                faults.append((bad, detail, _MEND.format(table=table)))
            elif detail:
                good.append(detail)
    if hidden:
        faults.append(("notice", "; ".join([*good, f"this role cannot see the plans of {listed(hidden)}"]), _ROLE))
    return found("plans", "; ".join(good), *faults, problems=sum(level == "problem" for level, *_ in faults))


_ROLE = "run doctor with a role that can work, as the workers have"


def _statements(job: type[JobMixin]) -> list[tuple[str, Any, str, set[str]]]:
    """Statements, the index that each must read, and all indexes that it may read."""
    claim = claim_jobs(worker="doctor", queues={"default": 1}, lease=60.0, job=job)
    complete = complete_jobs(ids=[1], tokens=[1], retain=[60.0], job=job)
    both = complete_jobs(ids=[1], tokens=[1], retain=[60.0], claim=claim, job=job)
    gone = delete_completed(ids=[1], tokens=[1], job=job)
    return [
        ("the claim", claim, "job_claim_idx", _CLAIM),
        ("the completion", complete, "job_running_idx", _COMPLETION),
        ("a completion with a claim", both, "job_claim_idx", _CLAIM | _COMPLETION),
        ("the deletion at the end", gone, "job_running_idx", _COMPLETION),
    ]


def _judged(
    examination: Examination, name: str, statement: Any, first: str, allowed: set[str]
) -> tuple[str, Level | None]:
    """A description of the plan, and its level; a notice if this role may not see it."""
    try:
        nodes = readings(examination.connection, statement)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _NOT_ALLOWED:
            raise
        if name != "the claim":
            return "", "notice"
        # The read part of the claim can be planned without the right to lock.
        reading = due_jobs(queues={"default": 1}, job=examination.store.job)
        nodes = readings(examination.connection, reading, locks=False)
    return _words(name, nodes, first, allowed)


def _words(name: str, nodes: Sequence[Reading], first: str, allowed: set[str]) -> tuple[str, Level | None]:
    nodes = [node for node in nodes if node.table != LimitRow.__tablename__]  # a claim reads all of its few rows
    walks = [node for node in nodes if not node.narrowed or node.index is None]
    if walks:
        how = listed(
            [
                f"walks over all of {node.index}"
                if node.index
                else f"{node.node.lower()} of the whole table {node.table}"
                for node in walks
            ]
        )
        return f"{name}: {how}", "problem"
    # In the order of reading, but for the probes, which come last.
    names = sorted(dict.fromkeys(node.index for node in nodes if node.index), key=_KEYS.__contains__)
    if first not in names or not set(names) <= allowed:
        return f"{name} reads {listed(names)} instead of {first}", "problem"
    return f"{name} reads {' and '.join(names)}", None
