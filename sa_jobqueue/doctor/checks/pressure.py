"""What else happens on the server: old snapshots, lock waits, connections, notifications, replication."""

from __future__ import annotations

from ...health.values import Holder, LockWait
from ...rules.words import age, duration, size
from ...util.log import escaped, one_line
from ...util.urls import mask_passwords
from ..examination import Examination
from ..finding import Finding, Level, beyond, found

_Ill = list[tuple[Level, str, str]]

_END_SESSIONS = "let forgotten ones end by themselves: `idle_in_transaction_session_timeout`"
_SEE_ALL = "to see the sessions of other roles: `GRANT pg_read_all_stats TO {}`"


def check_snapshot(examination: Examination) -> Finding:
    """The oldest snapshot, and who holds it: VACUUM removes nothing that died since."""
    limits = examination.thresholds
    holders = examination.holders
    ill: _Ill = []
    for holder in holders:
        by_time = "ok" if holder.seconds is None else beyond(holder.seconds, limits.snapshot)
        level = by_time if holder.seconds is not None else beyond(holder.xids, limits.snapshot_xids)
        if level == "notice" and any(table.dead >= limits.dead_rows[0] for table in examination.tables):
            level = "problem"
        if level != "ok":
            advice = _how_to_end(holder)
            if holder.hidden:
                advice += "; " + _SEE_ALL.format(examination.server.role)
            ill.append((level, _named(holder), advice))
    oldest = max((holder.seconds or 0.0 for holder in holders), default=0.0)
    xids = max((holder.xids for holder in holders), default=0)
    if not holders:
        well = "nothing holds dead rows back"
    elif all(holder.seconds is None for holder in holders):
        well = f"the oldest has been held for {xids:,} transactions"
    else:
        well = f"the oldest has been held for {duration(oldest)}"
    if any(holder.hidden for holder in holders):
        well += "; the times of other roles' sessions are hidden"
    return found("snapshot", well, *ill[:3], seconds=oldest, transactions=xids)


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
            return f"if nothing reads it any more: `SELECT pg_drop_replication_slot('{escaped(holder.name or '')}')`"
        case "standby":
            return "end the query there, or set max_standby_streaming_delay instead of hot_standby_feedback"
        case _:
            return f"`SELECT pg_terminate_backend({holder.pid})`; {_END_SESSIONS}; run long reports on a replica"


def check_locks(examination: Examination) -> Finding:
    """Sessions that use our tables and wait for a lock of another."""
    waits = examination.lock_waits
    ill: _Ill = []
    for wait in waits:
        level = beyond(wait.seconds or 0.0, examination.thresholds.lock_wait)
        if level != "ok":
            first = wait.blocked_by[0] if wait.blocked_by else None
            advice = f"if it is forgotten: `SELECT pg_terminate_backend({first})`" if first else ""
            ill.append((level, _waiting(wait), advice))
    longest = max((wait.seconds or 0.0 for wait in waits), default=0.0)
    return found("locks", "no session waits for a lock", *ill[:3], waiting=len(waits), seconds=longest)


def _waiting(wait: LockWait) -> str:
    blocker = f"process {wait.blocked_by[0]}" if wait.blocked_by else "another process"
    who = ", ".join(escaped(one) for one in (wait.blocker_name, wait.blocker_state) if one)
    own = escaped(wait.name or "no name")
    return f"process {wait.pid} ({own}) uses {wait.table} and waits for {blocker}{f' ({who})' if who else ''} for {age(wait.seconds)}"


def check_connections(examination: Examination) -> Finding:
    """How many of the server's connections are used."""
    server = examination.server
    level = beyond(server.connections_ratio, examination.thresholds.connections)
    said = f"{server.connections} of {server.connections_max} are used, {server.connections_of_queue} by workers and commands"
    numbers = {"used": float(server.connections), "most": float(server.connections_max)}
    if level == "ok":
        return Finding("connections", level, said, numbers=numbers)
    idle = server.connections_idle_in_transaction
    more = f"; {idle} are idle in a transaction" if idle else ""
    advice = "use a pooler or smaller pools, or raise max_connections"
    return Finding("connections", level, said + more, advice, numbers)


def check_notify_queue(examination: Examination) -> Finding:
    """How full the queue of notifications is: at 100 % every commit with a NOTIFY fails."""
    used = examination.server.notify_queue
    level = beyond(used, examination.thresholds.notify_queue)
    said = f"the notification queue is {used:.1%} full"
    if level == "ok":
        return Finding("notify-queue", level, said, numbers={"ratio": used})
    advice = (
        "a session that listens and stays in a transaction keeps it from being emptied: the server's log names it at half; "
        f"end it with pg_terminate_backend; {_END_SESSIONS}"
    )
    return Finding("notify-queue", level, said, advice, {"ratio": used})


def check_replication(examination: Examination) -> Finding:
    """How far standbys are behind."""
    standbys, limits = examination.standbys, examination.thresholds
    ill: _Ill = []
    for one in standbys:
        level = beyond(one.seconds or 0.0, limits.replication_lag)
        if level != "ok":
            name = f"the standby {escaped(one.name)}" if one.name else "this standby"
            behind = f" and {size(one.bytes)}" if one.bytes is not None else ""
            advice = "look for long queries there, for a slow disk or a slow network"
            ill.append((level, f"{name} is {age(one.seconds)}{behind} behind", advice))
    lag = max((one.seconds or 0.0 for one in standbys), default=0.0)
    well = f"{len(standbys)} in step, at most {age(lag)} behind" if standbys else "no server follows this one"
    if any(one.bytes is None for one in standbys) and not examination.server.sees_all:
        well += "; " + _SEE_ALL.format(examination.server.role)
    behind_by = max((one.bytes or 0 for one in standbys), default=0)
    return found("replication", well, *ill, standbys=len(standbys), seconds=lag, bytes=behind_by)


def check_slots(examination: Examination) -> Finding:
    """WAL that replication slots keep, and slots that nothing reads."""
    ill: _Ill = []
    for slot in examination.slots:
        level = beyond(slot.retained or 0, examination.thresholds.retained_wal)
        name, kept = escaped(slot.name), size(slot.retained or 0)
        drop = f"if nothing needs it: `SELECT pg_drop_replication_slot('{name}')`"
        if slot.wal_status == "lost":
            ill.append(("problem", f"the slot {name} has lost WAL that its reader needs", drop))
        elif not slot.active:
            ill.append(
                (
                    level if level != "ok" else "notice",
                    f"nothing reads the slot {name}, which keeps {kept} of WAL",
                    drop,
                )
            )
        elif level != "ok":
            ill.append((level, f"the reader of the slot {name} is {kept} of WAL behind", "see why it is slow"))
    retained = max((slot.retained or 0 for slot in examination.slots), default=0)
    number = len(examination.slots)
    well = f"{number} slot{'s are' if number != 1 else ' is'} read, and keep{'s' if number == 1 else ''} {size(retained)} of WAL at most"
    return found("slots", well if number else "there are no replication slots", *ill, slots=number, bytes=retained)
