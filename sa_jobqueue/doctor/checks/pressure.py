"""Other pressure on the server: old snapshots, lock waits, connections, notifications, replication."""

from __future__ import annotations

from ...health.values import Holder, LockWait
from ...rules.words import age, duration, size
from ...util.log import escaped, one_line
from ...util.urls import mask_passwords
from ..examination import Examination
from ..finding import Fault, Finding, beyond, found

_END_SESSIONS = "to end forgotten sessions automatically: `idle_in_transaction_session_timeout`"
_SEE_ALL = "to see the sessions of other roles: `GRANT pg_read_all_stats TO {}`"


def check_snapshot(examination: Examination) -> Finding:
    """The oldest snapshot and its holder: VACUUM removes no rows that died since."""
    limits = examination.thresholds
    holders = examination.holders
    faults: list[Fault] = []
    for holder in holders:
        by_time = "ok" if holder.seconds is None else beyond(holder.seconds, limits.snapshot)
        level = by_time if holder.seconds is not None else beyond(holder.xids, limits.snapshot_xids)
        if level == "notice" and any(table.dead >= limits.dead_rows[0] for table in examination.tables):
            level = "problem"
        if level != "ok":
            advice = _how_to_end(holder)
            if holder.hidden:
                advice += "; " + _SEE_ALL.format(examination.server.role)
            faults.append((level, _named(holder), advice))
    oldest = max((holder.seconds or 0.0 for holder in holders), default=0.0)
    xids = max((holder.xids for holder in holders), default=0)
    if not holders:
        summary = "nothing keeps VACUUM from removing dead rows"
    elif all(holder.seconds is None for holder in holders):
        summary = f"the oldest has been held for {xids:,} transactions"
    else:
        summary = f"the oldest has been held for {duration(oldest)}"
    if any(holder.hidden for holder in holders):
        summary += "; the times of other roles' sessions are hidden"
    return found("snapshot", summary, *faults[:3], seconds=oldest, transactions=xids)


def _named(holder: Holder) -> str:
    since = f"for {age(holder.seconds)}" if holder.seconds is not None else f"for {holder.xids:,} transactions"
    name = escaped(holder.name or "no name")
    match holder.kind:
        case "prepared":
            return f"the prepared transaction {name} of {escaped(holder.role or '?')} is open {since}"
        case "slot":
            return f"the replication slot {name} holds a snapshot {since}"
        case "standby":
            return f"a query on the standby {name} holds a snapshot {since} (hot_standby_feedback)"
        case _:
            state = f", {holder.state}" if holder.state else ""
            query = f"; its last statement: {mask_passwords(one_line(holder.query))[:60]}" if holder.query else ""
            return f"process {holder.pid} ({name}, role {escaped(holder.role or '?')}{state}) holds a snapshot {since}{query}"


def _how_to_end(holder: Holder) -> str:
    match holder.kind:
        case "prepared":
            name = (holder.name or "").replace("'", "''")
            return f"`ROLLBACK PREPARED '{escaped(name)}'`, or COMMIT PREPARED, by the program that made it"
        case "slot":
            return f"if nothing reads it any longer: `SELECT pg_drop_replication_slot('{escaped(holder.name or '')}')`"
        case "standby":
            return "end the query there, or set max_standby_streaming_delay instead of hot_standby_feedback"
        case _:
            return f"`SELECT pg_terminate_backend({holder.pid})`; {_END_SESSIONS}; run long reports on a replica"


def check_locks(examination: Examination) -> Finding:
    """Sessions that use our tables and wait for a lock of another session."""
    waits = examination.lock_waits
    faults: list[Fault] = []
    for wait in waits:
        level = beyond(wait.seconds or 0.0, examination.thresholds.lock_wait)
        if level != "ok":
            first = wait.blocked_by[0] if wait.blocked_by else None
            advice = f"if it is forgotten: `SELECT pg_terminate_backend({first})`" if first else ""
            faults.append((level, _waiting(wait), advice))
    longest = max((wait.seconds or 0.0 for wait in waits), default=0.0)
    return found("locks", "no session waits for a lock", *faults[:3], waiting=len(waits), seconds=longest)


def _waiting(wait: LockWait) -> str:
    blocker = f"process {wait.blocked_by[0]}" if wait.blocked_by else "another process"
    who = ", ".join(escaped(part) for part in (wait.blocker_name, wait.blocker_state) if part)
    own = escaped(wait.name or "no name")
    return f"process {wait.pid} ({own}) uses {wait.table} and waits for {blocker}{f' ({who})' if who else ''} for {age(wait.seconds)}"


def check_connections(examination: Examination) -> Finding:
    """The used connections of the server."""
    server = examination.server
    level = beyond(server.connections_ratio, examination.thresholds.connections)
    detail = f"{server.connections} of {server.connections_max} are used, {server.connections_of_queue} by workers and commands"
    numbers = {"used": float(server.connections), "most": float(server.connections_max)}
    if level == "ok":
        return Finding("connections", level, detail, numbers=numbers)
    idle = server.connections_idle_in_transaction
    more = f"; {idle} are idle in a transaction" if idle else ""
    advice = "use a pooler or smaller pools, or raise max_connections"
    return Finding("connections", level, detail + more, advice, numbers)


def check_notify_queue(examination: Examination) -> Finding:
    """The notification queue: when it is full, every commit with a NOTIFY fails."""
    used = examination.server.notify_queue
    level = beyond(used, examination.thresholds.notify_queue)
    detail = f"the notification queue is {used:.1%} full"
    if level == "ok":
        return Finding("notify-queue", level, detail, numbers={"ratio": used})
    advice = (
        "a listening session in a long transaction keeps the queue from being emptied: the server's log names it when the queue is half full; "
        f"end it with pg_terminate_backend; {_END_SESSIONS}"
    )
    return Finding("notify-queue", level, detail, advice, {"ratio": used})


def check_replication(examination: Examination) -> Finding:
    """The lag of standbys."""
    standbys, limits = examination.standbys, examination.thresholds
    faults: list[Fault] = []
    for standby in standbys:
        level = beyond(standby.seconds or 0.0, limits.replication_lag)
        if level != "ok":
            name = f"the standby {escaped(standby.name)}" if standby.name else "this standby"
            behind = f" and {size(standby.bytes)}" if standby.bytes is not None else ""
            advice = "check for long queries there, a slow disk or a slow network"
            faults.append((level, f"{name} is {age(standby.seconds)}{behind} behind", advice))
    lag = max((standby.seconds or 0.0 for standby in standbys), default=0.0)
    summary = f"{len(standbys)} in step, at most {age(lag)} behind" if standbys else "no server follows this one"
    if any(standby.bytes is None for standby in standbys) and not examination.server.sees_all:
        summary += "; " + _SEE_ALL.format(examination.server.role)
    behind_by = max((standby.bytes or 0 for standby in standbys), default=0)
    return found("replication", summary, *faults, standbys=len(standbys), seconds=lag, bytes=behind_by)


def check_slots(examination: Examination) -> Finding:
    """WAL that replication slots keep, and slots that nothing reads."""
    faults: list[Fault] = []
    for slot in examination.slots:
        level = beyond(slot.retained or 0, examination.thresholds.retained_wal)
        name, kept = escaped(slot.name), size(slot.retained or 0)
        drop = f"if nothing needs it: `SELECT pg_drop_replication_slot('{name}')`"
        if slot.wal_status == "lost":
            faults.append(("problem", f"the slot {name} has lost WAL that its reader needs", drop))
        elif not slot.active:
            faults.append(
                (
                    level if level != "ok" else "notice",
                    f"nothing reads the slot {name}, which keeps {kept} of WAL",
                    drop,
                )
            )
        elif level != "ok":
            faults.append((level, f"the reader of the slot {name} is {kept} of WAL behind", "see why it is slow"))
    retained = max((slot.retained or 0 for slot in examination.slots), default=0)
    number = len(examination.slots)
    summary = f"{number} slot{'s are' if number != 1 else ' is'} read, and keep{'s' if number == 1 else ''} {size(retained)} of WAL at most"
    return found(
        "slots", summary if number else "there are no replication slots", *faults, slots=number, bytes=retained
    )
