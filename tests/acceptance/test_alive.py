"""`sa-jobqueue alive`: a probe that knows a dead worker, a frozen one and a live one."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from datetime import timedelta

import pytest
from sqlalchemy import func, insert, select, text

from sa_jobqueue.cli import alive
from sa_jobqueue.models import WorkerRow
from tests.acceptance.conftest import ONE, Shop
from tests.support.cli import invoke, refused
from tests.support.nightly import nightly_sets
from tests.support.waiting import wait_until


def code(shop: Shop, *arguments: object) -> int:
    return invoke("alive", *map(str, arguments), url=shop.url).exit_code


def test_a_probe_tells_a_live_worker_from_a_frozen_and_a_killed_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its PID, its host and PID, its id, or as the only one here."""
    assert code(shop) == 1
    with shop.work() as worker:
        (id,) = wait_until(lambda: [row.id for row in shop.execute(select(WorkerRow.id))])
        names = [(), (worker.pid,), (f"{socket.gethostname()}:{worker.pid}",), (str(id)[:8],), (id,)]
        assert [code(shop, *name) for name in names] == [0] * 5
        assert [code(shop, name) for name in (1, f"elsewhere:{worker.pid}", uuid.uuid4())] == [1] * 3

        os.kill(worker.pid, signal.SIGSTOP)
        with monkeypatch.context() as shorter:
            shorter.setattr(alive, "WORKERS", alive.WORKERS.replace("> 60.0", "> 1.0"))
            wait_until(lambda: invoke("alive", str(worker.pid), url=shop.url).stdout.endswith("ago: stale\n"))
            assert code(shop) == 1
        os.kill(worker.pid, signal.SIGCONT)
        wait_until(lambda: code(shop, worker.pid) == 0)

        worker.kill()
        assert [code(shop, *name) for name in ((), (worker.pid,))] == [1, 1]


@pytest.mark.parametrize(("options", "number"), [(ONE, 1), *nightly_sets((("--processes=2",), 2))], ids=["one", "two"])
def test_a_supervisor_lives_where_all_its_workers_do(shop: Shop, options: tuple[str, ...], number: int) -> None:
    """What an earlier process with the same PID has left behind does not count."""
    with shop.work(*options) as supervisor:
        pids = wait_until(
            lambda: found if len(found := [row.pid for row in shop.execute(select(WorkerRow.pid))]) == number else None
        )
        assert code(shop, supervisor.pid) == 0
        for pid, host in ((pids[0], socket.gethostname()), (os.getpid(), socket.gethostname())):
            left = {"id": uuid.uuid4(), "host": host, "pid": pid, "queues": [], "concurrency": 1, "version": "0"}
            shop.execute(
                insert(WorkerRow).values(
                    **left, started_at=func.now() - timedelta(days=90), seen_at=func.now() - timedelta(days=89)
                )
            )
        assert (code(shop, supervisor.pid), code(shop)) == (0, 0)


@pytest.mark.parametrize(
    "options", [("--schema=elsewhere",), ("--schema=",), ("--database-url=postgresql://me@127.0.0.1:1/x",)]
)
def test_a_probe_refuses_a_database_as_other_commands_do(shop: Shop, options: tuple[str, ...]) -> None:
    """A missing schema, one that cannot be, and a server that is away: in the same words."""
    assert refused("alive", *options, url=shop.url) == refused("workers", *options, url=shop.url)


def test_a_probe_names_its_database_as_other_commands_do(shop: Shop) -> None:
    """On stderr, whether the URL was meant for this package or for the application."""
    for given in ({"url": shop.url}, {"env": {"DATABASE_URL": shop.url}}):
        named = invoke("alive", **given).stderr
        assert named.startswith("database: ")
        assert invoke("workers", **given).stderr.startswith(named)


def test_a_probe_works_with_a_newer_schema_that_lets_it(shop: Shop) -> None:
    """As while a deployment rolls; with one that does not, it refuses."""
    add_version = "INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES ({}, {})"
    shop.execute(text(add_version.format(2, 1)))
    assert code(shop) == 1
    shop.execute(text(add_version.format(3, 2)))
    assert "can no longer work with" in refused("alive", url=shop.url)


def test_a_probe_says_that_the_database_is_away(shop: Shop) -> None:
    """By an exit code of its own: to start workers again would not help."""
    assert invoke("alive", url="postgresql://me@127.0.0.1:1/nowhere").exit_code == 2
