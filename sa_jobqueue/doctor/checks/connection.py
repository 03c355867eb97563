"""The server's version, its clock, the schema, and whether a NOTIFY arrives."""

from __future__ import annotations

import time

import sqlalchemy as sa

from ...errors import ConfigurationError, SchemaError
from ...migrations import CURRENT, check_schema, current_version
from ...util.log import escaped
from ..examination import Examination
from ..finding import Finding

_OLDEST_SERVER = 15
_NOTIFY_PATIENCE = 5.0


def check_database(examination: Examination) -> Finding:
    """A supported version, and a server that takes writes."""
    version, number, read_only, name = examination.connection.execute(
        sa.text(
            "SELECT current_setting('server_version'), current_setting('server_version_num')::int / 10000, "
            "pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool, current_database()"
        )
    ).one()
    detail = f"PostgreSQL {version}, database {escaped(name)}"
    if number < _OLDEST_SERVER:
        advice = "upgrade the server: older servers lack features that the queue's statements need"
        return Finding("database", "problem", f"{detail}: {_OLDEST_SERVER} or newer is needed", advice)
    if read_only:
        advice = "give the primary's URL: workers write, and a standby does not count the rows of tables"
        return Finding("database", "problem", f"{detail}: it is read-only (a standby?)", advice)
    return Finding("database", "ok", detail)


def check_clock(examination: Examination) -> Finding:
    """The server's clock compared with this machine's."""
    before = time.time()
    there = float(examination.connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())")) or 0)
    after = time.time()
    skew = there - (before + after) / 2
    detail = f"the server is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine"
    if abs(skew) > examination.thresholds.clock_skew + (after - before) / 2:
        advice = "set the clocks (NTP); the server's decides when a job is due"
        return Finding("clock", "problem", detail, advice, {"seconds": skew})
    return Finding("clock", "ok", detail, numbers={"seconds": skew})


def check_schema_version(examination: Examination) -> Finding:
    """The version of the job tables compared with this release's."""
    connection, schema = examination.connection, examination.schema
    try:
        check_schema(connection)
    except SchemaError as error:
        detail, colon, advice = str(error).rpartition(": ")
        return Finding("schema", "problem", detail if colon else str(error), advice)
    found = current_version(connection)
    newer = "" if found == CURRENT else f", newer than this release's {CURRENT}"
    numbers = {"version": float(found or 0), "release": float(CURRENT)}
    if newer:
        detail = f"{escaped(schema)} has version {found}{newer}, and this release can work with it"
        return Finding("schema", "notice", detail, "install the newer release here as well", numbers)
    return Finding("schema", "ok", f"{escaped(schema)} has version {found}", numbers=numbers)


def check_wake_ups(examination: Examination) -> Finding:
    """LISTEN on one connection and NOTIFY on another, over a channel of its own."""
    import psycopg  # the help of `doctor` needs no libpq
    from psycopg import sql

    engine = examination.engine
    if engine is None or examination.server.in_recovery:
        return Finding("wake-ups", "ok", "not tried here: it takes two more connections, to a primary")
    probe = f"{examination.store.channel(examination.connection)}_check"
    with engine.connect() as listening, engine.connect() as other:
        listening.detach()  # it will listen, outside of transactions: the pool must not hand it to the application
        raw = listening.connection.dbapi_connection
        if not isinstance(raw, psycopg.Connection):
            raise ConfigurationError(
                "to try LISTEN and NOTIFY, the engine must use psycopg 3, create_engine('postgresql+psycopg://...'); or skip "
                "the probe, examine(engine, probe=False)"
            )
        raw.autocommit = True
        raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(probe)))
        begun = time.monotonic()
        other.execute(sa.select(sa.func.pg_notify(probe, "")))
        other.commit()
        heard = next(iter(raw.notifies(timeout=_NOTIFY_PATIENCE, stop_after=1)), None)
        took = time.monotonic() - begun
    if heard is None:
        advice = "behind a pooler, give workers a direct --listen-url, and this command the direct URL"
        return Finding("wake-ups", "problem", "LISTEN hears nothing", advice)
    return Finding("wake-ups", "ok", f"a NOTIFY was heard after {took * 1000:.1f} ms", numbers={"seconds": took})
