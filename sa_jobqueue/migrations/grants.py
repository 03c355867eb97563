"""The GRANTs that a database role needs to enqueue, work, read or act, as text.

>>> for statement in grant_statements("web", [Can.ENQUEUE]):
...     print(statement)
GRANT USAGE ON SCHEMA "sa_jobqueue" TO "web"
GRANT SELECT ON TABLE "sa_jobqueue".schema_version TO "web"
GRANT INSERT (task, args, queue, priority, max_attempts, run_at, meta, uniqueness, expires_at, deadline_at, concurrency_key, units, subject_type, subject_id, extras), SELECT (id, created_at, claims, attempt, rescues, duplicate_of) ON TABLE "sa_jobqueue".job TO "web"
GRANT SELECT ON SEQUENCE "sa_jobqueue".gate_any TO "web"
GRANT EXECUTE ON FUNCTION "sa_jobqueue".due_at(text), "sa_jobqueue".refuse_argument(text) TO "web"
GRANT INSERT (name, deadline_at, fail_fast, retain, meta), SELECT (id, created_at, watched_id, is_broken, status, meta) ON TABLE "sa_jobqueue".workflow TO "web"
GRANT INSERT ON TABLE "sa_jobqueue".workflow_callback TO "web"
GRANT INSERT (name, payload, expires_at), SELECT (id, sent_at, expires_at, look_at) ON TABLE "sa_jobqueue".signal TO "web"
GRANT SELECT (since, resumed_at, signal, question) ON TABLE "sa_jobqueue".wait TO "web"
GRANT SELECT, INSERT ON TABLE "sa_jobqueue".inbox TO "web"
GRANT EXECUTE ON FUNCTION "sa_jobqueue".add_members TO "web"

Each list is as short as possible. A test connects as such a role and shows both what it can do and what it cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from ..errors import ConfigurationError
from ..rules.job_fields import JOB_FIELDS
from ..rules.limits import Limits
from ..util.schema import GATES, SCHEMA, quote


class Can(StrEnum):
    """What a role may do."""

    ENQUEUE = "enqueue"
    """Insert jobs, queued and with the next id, and workflows; not read their arguments, nor change or delete any."""
    WORK = "work"
    """Run a worker: claim, finish, renew, rescue, prune, archive, enqueue the ticks of schedules, write down the limits that its code
    declares; not enqueue other jobs, nor change what a job is to do."""
    READ = "read"
    """Read jobs, the archive, schedules and workers."""
    SCHEDULE = "schedule"
    """Make, change, pause and remove schedules, also those that code declares; so the role decides which jobs they enqueue."""
    WAIT = "wait"
    """Wait for the end of jobs, and read their results and errors."""
    ADMIN = "admin"
    """Read, and cancel, retry, discard, release, edit, copy and delete jobs; set limits; pause queues, tasks and schedules, and enqueue the jobs
    of schedules; cancel, retry and pause workflows; ask workers to drain, and set their slots."""


# Each role finds the tables, and reads their version.
_ALL = ("USAGE ON SCHEMA {schema}", "SELECT ON TABLE {schema}.schema_version")

_LOOK = (
    "SELECT ON TABLE {schema}.job",
    "SELECT ON TABLE {schema}.worker",
    "SELECT ON TABLE {schema}.unique_key",
    "SELECT ON TABLE {schema}.job_progress",
    "SELECT ON TABLE {schema}.job_log",
    "SELECT ON TABLE {schema}.step, {schema}.signal, {schema}.wait",
    "SELECT ON TABLE {schema}.schedule",
    "SELECT ON TABLE {schema}.stat",
    "SELECT ON TABLE {schema}.backlog",
    "SELECT ON TABLE {schema}.archived_job",
    "SELECT ON TABLE {schema}.archived_task",
    "SELECT ON TABLE {schema}.job_limit",
    "SELECT ON TABLE {schema}.job_key",
    "SELECT ON TABLE {schema}.limit_state",
    "SELECT ON TABLE {schema}.audit",
    *(f"SELECT ON TABLE {{schema}}.workflow{part}" for part in ("", "_dependency", "_join", "_callback", "_event")),
    # The doctor compares them with the ids that there are.
    "SELECT ON SEQUENCE "
    + ", ".join(f"{{schema}}.{table}_id_seq" for table in ("job", "schedule", "workflow", "workflow_event", "audit")),
)

# A sender reads back the values that the server has set.
_SEND = "INSERT (name, payload, expires_at), SELECT (id, sent_at, expires_at, look_at) ON TABLE {schema}.signal"

# A statement that ends a job notifies the programs that wait for it.
_TELL = (
    "SELECT ON SEQUENCE {schema}.gate_end",
    "EXECUTE ON FUNCTION {schema}.any_awaited(), {schema}.tell_ended(bigint[])",
    # It may enqueue the job's follow-up.
    "EXECUTE ON FUNCTION {schema}.follow_up(bigint)",
)

# And it appends an event to the workflow of a member.
_TELL_WORKFLOWS = (
    "INSERT (workflow_id, job_id, completed) ON TABLE {schema}.workflow_event",
    "EXECUTE ON FUNCTION {schema}.tell_workflows()",
)
_CANCEL_WORKFLOWS = "EXECUTE ON FUNCTION {schema}.cancel_workflows(bigint[], text)"
# The rest of a row, and of all that belongs to it, is written by functions.
_WORKFLOW = (
    "INSERT (name, deadline_at, fail_fast, retain, meta), SELECT (id, created_at, watched_id, is_broken, status, meta)"
)

# What a job is to do, and when. The table decides all else: an id of a later job would make the INSERT of that job fail, and a
# job inserted as running or done was never claimed.
_WRITTEN_BY_PRODUCERS = ", ".join(field.column for field in JOB_FIELDS)
# Not what a job is to do.
_WRITTEN_BY_WORKERS = "status, claim_token, claims, attempt, rescues, worker, run_at, claimed_at, lease_expires_at, finished_at, purge_at, cancel_requested_at, expires_at, errors, result, concurrency_key, ready_at, blocked_by"
# The limits that their code declares; no pause. Triggers keep what operators hold, and the pauses of operators.
_DECLARED_BY_WORKERS = ", ".join((*Limits().columns(), "declared", "declared_at", "definitions"))
_PAUSED_BY_OPERATORS = "paused_at, paused_by, pause_reason"
_MOVED_BY_WORKERS = f"next_at, due_at, last_tick_at, waiting_since, left_out, error, {_PAUSED_BY_OPERATORS}"
_ENQUEUE_TICKS = "{schema}.enqueue_ticks(bigint[], double precision[], integer[], double precision[])"
_WRITTEN_BY_OPERATORS = (
    "args, queue, priority, status, attempt, rescues, run_at, lease_expires_at, finished_at, purge_at, cancel_requested_at, errors, result, "
    "duplicate_of, expires_at, deadline_at, blocked_by, extras"
)

# An INSERT returns those of them that have a default of the server's.
_FILL_COLUMNS = "INSERT ({0}), SELECT ({0}) ON TABLE {{schema}}.job"

#: Capability -> what is granted. Columns are named where a whole table would be more than is needed.
_GRANTS: Mapping[Can, tuple[str, ...]] = MappingProxyType(
    {
        Can.ENQUEUE: (
            *_ALL,
            # A Session's INSERT returns these columns. An identity column's sequence wants no grant, and the wake-up
            # trigger's function runs with the rights of its owner; only its condition does not.
            f"INSERT ({_WRITTEN_BY_PRODUCERS}), SELECT (id, created_at, claims, attempt, rescues, duplicate_of) ON TABLE {{schema}}.job",
            "SELECT ON SEQUENCE {schema}.gate_any",
            "EXECUTE ON FUNCTION {schema}.due_at(text), {schema}.refuse_argument(text)",
            f"{_WORKFLOW} ON TABLE {{schema}}.workflow",
            "INSERT ON TABLE {schema}.workflow_callback",
            _SEND,
            # For the address of a callback: its question, and whether it was used.
            "SELECT (since, resumed_at, signal, question) ON TABLE {schema}.wait",
            "SELECT, INSERT ON TABLE {schema}.inbox",
            "EXECUTE ON FUNCTION {schema}.add_members",  # there is one of this name
        ),
        Can.WORK: (
            *_ALL,
            f"SELECT, DELETE, UPDATE ({_WRITTEN_BY_WORKERS}) ON TABLE {{schema}}.job",
            "SELECT, INSERT, DELETE, UPDATE (seen_at, stats_written, memory, loop_lag, pressure, skipped, queues, concurrency, slots, wanted) ON TABLE {schema}.worker",
            "SELECT, INSERT, UPDATE, DELETE ON TABLE {schema}.stat",
            "SELECT, INSERT, DELETE ON TABLE {schema}.backlog",
            "SELECT, INSERT, UPDATE (since, until) ON TABLE {schema}.uptime",
            "SELECT, DELETE, UPDATE (expires_at) ON TABLE {schema}.unique_key",
            "SELECT, INSERT, DELETE, UPDATE (claim_token, claims, fraction, message, written_at) ON TABLE {schema}.job_progress",
            "SELECT, INSERT, DELETE, UPDATE (lines, written_at) ON TABLE {schema}.job_log",
            "SELECT, INSERT, UPDATE, DELETE ON TABLE {schema}.step, {schema}.wait",
            "SELECT, UPDATE (look_at), DELETE ON TABLE {schema}.signal",
            "SELECT, DELETE, UPDATE (done_at) ON TABLE {schema}.inbox",
            "EXECUTE ON FUNCTION {schema}.resume_waiting(integer)",
            # The months are made and dropped by functions, which have the rights of the table's owner.
            "INSERT ON TABLE {schema}.archived_job",
            "SELECT, INSERT, DELETE ON TABLE {schema}.archived_task",
            "EXECUTE ON FUNCTION {schema}.make_archive_months(timestamptz[]), {schema}.drop_archive_month(integer)",
            f"SELECT, UPDATE ({_MOVED_BY_WORKERS}) ON TABLE {{schema}}.schedule",
            f"SELECT, INSERT (owner, name, {_DECLARED_BY_WORKERS}), UPDATE ({_DECLARED_BY_WORKERS}), DELETE ON TABLE {{schema}}.job_limit",
            "SELECT ON TABLE {schema}.job_key",
            "SELECT, INSERT, UPDATE, DELETE ON TABLE {schema}.limit_state",
            "EXECUTE ON FUNCTION {schema}.tell_breakers(bigint[], boolean[], boolean[], integer[], double precision[], double precision[])",
            "EXECUTE ON FUNCTION {schema}.forget_breakers()",
            "SELECT, UPDATE ON SEQUENCE {schema}.gate_limit",
            f"EXECUTE ON FUNCTION {_ENQUEUE_TICKS}",
            "SELECT, UPDATE ON SEQUENCE " + ", ".join(f"{{schema}}.gate_{gate}" for gate in (*range(GATES), "any")),
            "EXECUTE ON FUNCTION {schema}.tell_workers(oid)",
            "EXECUTE ON FUNCTION {schema}.complete_job(bigint, bigint, double precision)",
            "EXECUTE ON FUNCTION {schema}.complete_job(bigint, bigint, double precision, jsonb)",
            "EXECUTE ON FUNCTION {schema}.complete_member(bigint, bigint, double precision)",
            "EXECUTE ON FUNCTION {schema}.complete_member(bigint, bigint, double precision, jsonb)",
            "SELECT, DELETE, UPDATE (purge_at) ON TABLE {schema}.workflow",
            *(
                f"SELECT, DELETE ON TABLE {{schema}}.workflow_{part}"
                for part in ("dependency", "join", "callback", "event")
            ),
            "EXECUTE ON FUNCTION {schema}.advance(bigint[], bigint[], integer)",
            _CANCEL_WORKFLOWS,
            *_TELL_WORKFLOWS,
            *_TELL,
        ),
        Can.READ: (*_ALL, *_LOOK),
        Can.SCHEDULE: (*_ALL, "SELECT, INSERT, UPDATE, DELETE ON TABLE {schema}.schedule"),
        Can.WAIT: (
            *_ALL,
            "SELECT (id, task, status, result, errors) ON TABLE {schema}.job",
            "SELECT (id, task, status, result, errors) ON TABLE {schema}.archived_job",
            "SELECT, INSERT, DELETE, UPDATE (expires_at) ON TABLE {schema}.awaited",
            "SELECT, UPDATE ON SEQUENCE {schema}.gate_end",
        ),
        Can.ADMIN: (
            *_ALL,
            *_LOOK,
            # A copy of a job is a job.
            f"DELETE, INSERT ({_WRITTEN_BY_PRODUCERS}), UPDATE ({_WRITTEN_BY_OPERATORS}) ON TABLE {{schema}}.job",
            "DELETE ON TABLE {schema}.job_progress",
            "DELETE ON TABLE {schema}.job_log",
            _SEND,
            "DELETE ON TABLE {schema}.step, {schema}.signal, {schema}.wait",
            # A fork copies steps, and a retry lets a step accept other arguments.
            "INSERT (job_id, claim_token, ended_at, took, revision, kind, name, digest, result), UPDATE (digest) ON TABLE {schema}.step",
            "EXECUTE ON FUNCTION {schema}.refuse_argument(text)",
            "DELETE ON TABLE {schema}.archived_job",
            "SELECT, INSERT, DELETE, UPDATE (job_id, keep, expires_at) ON TABLE {schema}.unique_key",
            "EXECUTE ON FUNCTION {schema}.take_key(bigint, jsonb)",
            "EXECUTE ON FUNCTION {schema}.tell_workers(oid)",
            f"DELETE, UPDATE (args, {_PAUSED_BY_OPERATORS}) ON TABLE {{schema}}.schedule",
            f"EXECUTE ON FUNCTION {_ENQUEUE_TICKS}",
            # Secret arguments are encrypted again.
            "UPDATE (args) ON TABLE {schema}.workflow_callback",
            "INSERT, UPDATE, DELETE ON TABLE {schema}.job_limit",
            "INSERT, UPDATE, DELETE ON TABLE {schema}.job_key",
            "UPDATE (blocked_until) ON TABLE {schema}.limit_state",
            "EXECUTE ON FUNCTION {schema}.set_breaker(text, text, double precision, text)",
            _CANCEL_WORKFLOWS,
            "EXECUTE ON FUNCTION {schema}.retry_workflow(bigint, bigint)",
            "INSERT (count, action, who, target) ON TABLE {schema}.audit",
            "UPDATE (drain_requested_at, wanted) ON TABLE {schema}.worker",
            "EXECUTE ON FUNCTION {schema}.pause_workflows(bigint[]), {schema}.resume_workflows(bigint[])",
            *_TELL_WORKFLOWS,
            "SELECT, UPDATE ON SEQUENCE {schema}.gate_limit",
            *_TELL,
        ),
    }
)


def grant_statements(role: str, can: Iterable[Can], *, schema: str = SCHEMA, columns: Iterable[str] = ()) -> list[str]:
    """Return the GRANTs that let `role` do what `can` says. Executed once more, they change nothing.

    The owner of the tables runs them, and once more after each upgrade of the schema. Rights on the application's own
    tables, which handlers need, are granted by the application.

    `columns`: those that a job table of your own has besides, and that a role which enqueues, or copies jobs, may fill.

    Raises ConfigurationError for a text that cannot be the name of a role, a schema or a column.
    """
    if not role or "\0" in role or len(role.encode()) > 63:  # the server would cut it off, and find another role
        raise ConfigurationError(f"{role!r} cannot be the name of a role: expected 1 to 63 bytes, without NUL")
    can = list(can)
    wanted = dict.fromkeys(grant for right in can for grant in _GRANTS[right])
    own = [quote(column, "column") for column in columns]
    if own and not {Can.ENQUEUE, Can.ADMIN}.isdisjoint(can):
        wanted[_FILL_COLUMNS.format(", ".join(own).replace("{", "{{").replace("}", "}}"))] = None
    to = '"' + role.replace('"', '""') + '"'
    return [f"GRANT {grant.format(schema=quote(schema))} TO {to}" for grant in wanted]
