"""The doctor on servers of their own: connections used up, slots that nothing reads, a standby, and a role with few rights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine

from sa_jobqueue.doctor import Finding, Thresholds
from sa_jobqueue.embedded.processes import programs_of
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.health.read import Readings
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.migrations.grants import Can, grant_statements
from tests.faults.server import Guard, Server
from tests.support.commands import ROOT
from tests.support.folders import make_server_folder
from tests.support.ills import look
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the servers are."""
    folder = make_server_folder("doctor-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A small server with the job tables."""
    guard = Guard()
    settings = {
        "max_connections": "20",
        "track_io_timing": "on",
        "autovacuum": "off",
        "autovacuum_naptime": "1s",
        "autovacuum_freeze_max_age": "100000",
    }
    server = Server.make(folder / "primary", guard, settings)
    server.start()
    upgrade_database(server.url())
    yield server
    server.remove()
    guard.close()


def test_a_server_that_is_nearly_full_is_a_problem(server: Server) -> None:
    """Before the next worker cannot connect."""
    with ExitStack() as stack:
        for _ in range(15):
            stack.enter_context(server.connect())
        assert look(server.url())["connections"].level == "notice"
        for _ in range(3):
            stack.enter_context(server.connect()).execute("BEGIN; SELECT 1")
        finding = look(server.url())["connections"]
        assert (finding.level, finding.numbers) == ("problem", {"used": 19.0, "most": 20.0})
        assert finding.detail.startswith("19 of 20 are used, 0 by workers and commands")
        assert finding.detail.endswith("3 are idle in a transaction")
    wait_until(lambda: look(server.url())["connections"].level == "ok")


def test_a_table_that_no_vacuum_comes_to_is_a_problem(server: Server) -> None:
    """On this server, because autovacuum is off. It comes by itself when that is on again, and then all is well."""
    server.execute(
        "INSERT INTO sa_jobqueue.unique_key (key, job_id) SELECT n::text, n FROM generate_series(1, 12000) AS n"
    )
    server.execute("DELETE FROM sa_jobqueue.unique_key")
    wait_until(lambda: look(server.url())["dead-rows"].numbers["rows"] >= 12_000)
    server.execute("INSERT INTO sa_jobqueue.job (task) VALUES ('a_task')")
    assert "unique_key" not in look(server.url())["vacuum"].detail  # ten minutes are given to new tables
    server.execute("UPDATE sa_jobqueue.job SET created_at = now() - interval '11 minutes'")
    finding = look(server.url())["vacuum"]
    assert finding.level == "problem"
    assert "autovacuum is off on this server" in finding.detail
    assert "unique_key was never vacuumed, and has 12,000 dead rows" in finding.detail
    server.execute("ALTER SYSTEM SET autovacuum = on")
    server.execute("SELECT pg_reload_conf()")
    wait_until(lambda: look(server.url())["vacuum"].level == "ok")
    assert look(server.url())["dead-rows"].numbers["rows"] < 12_000
    server.execute("DELETE FROM sa_jobqueue.job")


#: Each subtransaction that writes takes a number.
MANY_TRANSACTIONS = """
DO $$ BEGIN
    CREATE TEMP TABLE numbers (n int);
    FOR n IN 1..130000 LOOP
        BEGIN INSERT INTO numbers VALUES (n); EXCEPTION WHEN division_by_zero THEN NULL; END;
    END LOOP;
END $$
"""


def test_rows_that_nobody_freezes_are_found(server: Server) -> None:
    """An old snapshot keeps even the vacuum that freezes from its work, on the way to the end of transaction ids."""
    assert look(server.url())["frozen-age"].level == "ok"
    with server.connect() as report:
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1 FROM sa_jobqueue.job")
        server.execute(MANY_TRANSACTIONS)
        server.execute("VACUUM (FREEZE)")
        finding = look(server.url())["frozen-age"]
        assert finding.level == "notice"
        assert "transactions old, and autovacuum has not frozen it" in finding.detail
        assert look(server.url(), Thresholds(frozen_age=(0.5, 1.25)))["frozen-age"].level == "problem"
    server.execute("VACUUM (FREEZE)")
    assert look(server.url())["frozen-age"].level == "ok"


def test_a_slot_that_nothing_reads_is_found(server: Server) -> None:
    """A notice at once, and a problem when it keeps much WAL."""
    server.execute("SELECT pg_create_physical_replication_slot('left_behind', true)")
    finding = look(server.url())["slots"]
    assert finding.level == "notice"
    assert finding.detail.startswith("nothing reads the slot left_behind, which keeps ")
    assert look(server.url(), Thresholds(retained_wal=(0, 0)))["slots"].level == "problem"
    assert finding.advice == "if nothing needs it: `SELECT pg_drop_replication_slot('left_behind')`"
    server.execute("SELECT pg_drop_replication_slot('left_behind')")
    assert look(server.url())["slots"] == Finding(
        "slots", "ok", "there are no replication slots", numbers={"slots": 0, "bytes": 0}
    )


def test_a_standby_is_looked_at_for_what_it_can_know(server: Server, folder: Path) -> None:
    """That it is read-only, its plans, and how far it is behind; rows are the primary's to count. A query on it that holds the
    primary's dead rows back is found on the primary.
    """
    standby = server.copy(folder / "standby")
    try:
        wait_until(lambda: look(server.url())["replication"].detail.startswith("1 in step"))
        findings = look(standby.url())
        assert findings["database"].level == "problem"
        assert "read-only" in findings["database"].detail
        assert {name for name, one in findings.items() if one.level == "problem"} == {"database"}
        assert findings["vacuum"].detail == "this is a standby: the primary counts its rows"
        assert "the claim reads job_claim_idx" in findings["plans"].detail

        limits = Thresholds(replication_lag=(0.001, 0.001))
        server.execute("CREATE TABLE something AS SELECT 1")
        wait_until(lambda: standby.execute("SELECT pg_last_xact_replay_timestamp() IS NOT NULL") == [(True,)])
        standby.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: standby.execute("SELECT pg_get_wal_replay_pause_state()") == [("paused",)])
        server.execute("CREATE TABLE more AS SELECT 1")
        wait_until(lambda: look(standby.url(), limits)["replication"].detail.startswith("this standby is "))
        assert look(standby.url(), limits)["replication"].level == "problem"
        standby.execute("SELECT pg_wal_replay_resume()")
        wait_until(lambda: look(standby.url(), limits)["replication"].level == "ok")

        standby.execute("ALTER SYSTEM SET hot_standby_feedback = on")
        standby.execute("ALTER SYSTEM SET wal_receiver_status_interval = '1s'")
        standby.execute("SELECT pg_reload_conf()")
        with standby.connect() as report:
            report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            report.execute("SELECT 1 FROM sa_jobqueue.job")
            limits = Thresholds(snapshot_xids=(0, 0))
            wait_until(lambda: "hot_standby_feedback" in look(server.url(), limits)["snapshot"].detail)
    finally:
        standby.remove()


def test_a_reader_is_told_what_it_cannot_see(server: Server) -> None:
    """Of another role's session it sees the process and the age of its snapshot, and which GRANT shows the rest."""
    server.execute("CREATE ROLE reader LOGIN")
    for statement in grant_statements("reader", [Can.READ]):
        server.execute(statement)
    url = server.url().replace("postgres@", "reader@")
    with server.connect() as report:
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1 FROM sa_jobqueue.job")
        hidden = look(url, Thresholds(snapshot_xids=(0, 0)))["snapshot"]
        assert hidden.level == "problem"
        assert f"process {report.info.backend_pid} " in hidden.detail
        assert "GRANT pg_read_all_stats TO reader" in hidden.advice
        plans = look(url)["plans"]
        assert plans.level == "notice"
        assert plans.detail.startswith("the claim reads job_claim_idx")
        assert "; this role cannot see the plans of the completion, a completion with a claim, " in plans.detail
        server.execute("GRANT pg_read_all_stats TO reader")
        seen = look(url, Thresholds(snapshot=(0.0, 0.0)))["snapshot"]
        assert "idle in transaction" in seen.detail
        assert "pg_read_all_stats" not in seen.advice
    # Whether autovacuum is on depends on the tests before this one.
    assert {one.level for one in look(url).values() if one.name != "vacuum"} == {"ok", "notice"}


@pytest.mark.nightly
def test_the_page_takes_a_queue_to_a_new_server(folder: Path) -> None:
    """By the commands of "A new server, by logical replication": jobs arrive, the doctor finds what is missing until it is done, and ids go on."""
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text()
    section = page[page.index("## A new server") : page.index("## Is everything well?")]
    copy, publish, subscribe, leave = re.findall(r"^ +\$ (.+)$", section, re.MULTILINE)
    (mend,) = re.findall(r"```sql\n(.+?)```", section, re.DOTALL)
    guard = Guard()
    blue, green = (Server.make(folder / name, guard, {"wal_level": "logical"}) for name in ("blue", "green"))
    try:
        for server in (blue, green):
            server.start()
            server.execute(f"CREATE DATABASE shop_{'blue' if server is blue else 'green'}")
        upgrade_database(blue.url("shop_blue"))
        insert = "INSERT INTO sa_jobqueue.job (task) SELECT 'a_task' FROM generate_series(1, 50)"
        blue.execute(insert, database="shop_blue")

        def shell(command: str) -> None:
            for server, name in ((blue, "shop_blue"), (green, "shop_green")):
                place = f"-h 127.0.0.1 -U postgres -p {server.port}"
                command = re.sub(rf"(psql|pg_dump)( \S+)? {name}\b", rf"\1 {place}\2 {name}", command)
            command = command.replace("host=blue", f"host=127.0.0.1 port={blue.port} user=postgres")
            path = f"{programs_of(blue.programs)}:{os.environ['PATH']}"
            subprocess.run(["bash", "-ec", command], check=True, env={**os.environ, "PATH": path})

        for command in (copy, publish, subscribe):
            shell(command)
        count = "SELECT count(*) FROM sa_jobqueue.job"
        ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
        wait_until(lambda: green.execute(ready, database="shop_green") == [(True,)])
        assert green.execute(count, database="shop_green") == [(50,)]
        shell(leave)
        assert look(green.url("shop_green"))["sequences"].level == "problem"
        green.execute(mend, database="shop_green")
        assert look(green.url("shop_green"))["sequences"].level == "ok"
        green.execute(insert, database="shop_green")
        assert green.execute("SELECT max(id) FROM sa_jobqueue.job", database="shop_green") == [(100_100,)]
    finally:
        blue.remove()
        green.remove()
        guard.close()


def test_all_of_a_servers_condition_is_read(server: Server) -> None:
    """In one go, with the times of blocks where the server measures them."""
    engine = create_engine(server.url(), poolclass=NullPool)
    with engine.connect() as connection:
        health = Readings(connection)
        assert health.holders == health.slots == health.standbys == health.lock_waits == []
        assert health.server.times_io
        assert health.server.connections_max == 20
        assert {"job", "schedule", "worker"} <= {table.name for table in health.tables}
        assert {"job_claim_idx", "job_pkey"} <= {index.name for index in health.indexes}
        assert health.overdue.rows == 0
        assert health.depths == []
        assert any(one.hits for one in health.io) or health.server.major < 16


def test_a_role_without_rights_gets_an_error_that_says_what_to_grant(server: Server) -> None:
    """It may connect, and no more."""
    server.execute("CREATE ROLE stranger LOGIN")
    with pytest.raises(JobQueueError, match="sa-jobqueue grants"):
        look(server.url().replace("postgres@", "stranger@"))
