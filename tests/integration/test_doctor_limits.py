"""What the doctor says of limits and pauses beside the ills: what may become one, and how much there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue.doctor import Finding, Thresholds
from sa_jobqueue.statements import open_breaker
from tests.support import pooler
from tests.support.databases import connect
from tests.support.factory import make_job, make_jobs
from tests.support.ills import ABLE_WORKER, look
from tests.support.limits import key, limit, rate

HOUR = timedelta(hours=1)
NOW = text("now()")


@pytest.fixture
def database_url(database_url: str) -> str:
    """The URL past a pooler."""
    return pooler.direct(database_url)


def about_limits(url: str, thresholds: Thresholds | None = None) -> Finding:
    return look(url, thresholds)["limits"]


def test_without_limits_there_is_nothing_to_say(database_url: str) -> None:
    """No limit, no key, no state."""
    finding = about_limits(database_url)
    assert (finding.level, finding.detail, finding.advice) == ("ok", "no queue and no task has limits", "")
    assert set(finding.numbers.values()) == {0}


def test_a_breaker_is_a_notice_while_jobs_wait(engine: Engine, database_url: str) -> None:
    """Of a task, or of some of its keys. A breaker for which no job waits is well."""
    with engine.begin() as connection:
        for name, its_key in (("send", None), ("fetch", "a"), ("idle", None)):
            connection.execute(open_breaker(name, key=its_key))
        make_job(connection, task="send")
        make_job(connection, task="fetch", concurrency_key="a")
    finding = about_limits(database_url)
    assert (finding.level, finding.detail.split("; ")[0]) == (
        "notice", "jobs wait because of a breaker: task fetch, task send",
    )  # fmt: skip
    assert "`limits close NAME` starts the jobs" in finding.advice


def test_a_pause_is_a_notice_while_jobs_wait(engine: Engine, database_url: str) -> None:
    """Of a queue, a task and a key, each with its command; a pause for which nothing waits is well."""
    with engine.begin() as connection:
        limit(connection, "mail", paused_at=NOW, pause_reason="the provider is down")
        limit(connection, "send", owner="task", paused_at=NOW)
        key(connection, "42", "sync", paused_at=NOW)
        key(connection, "43", "sync", paused_at=NOW)
        limit(connection, "idle", paused_at=NOW)
        make_jobs(connection, 3, queue="mail")
        make_jobs(connection, 2, queue="sync", concurrency_key="42")
        make_job(connection, task="send")

    finding = about_limits(database_url)

    assert finding.level == "notice"
    assert re.sub(r"for \d+s", "for some s", finding.detail).startswith(
        "jobs wait because of a pause: queue mail (for some s, 'the provider is down'; 3 due), "
        "queue sync key 42 (for some s; 2 due), task send (for some s; some are queued)"
    )
    assert finding.advice == (
        "when the reason is gone: `sa-jobqueue resume mail`, `sa-jobqueue resume sync --key 42`, `sa-jobqueue resume send --task`"
    )
    assert (finding.numbers["paused"], finding.numbers["waiting"]) == (5, 5)
    assert about_limits(database_url, Thresholds(paused=(3_600.0, 7_200.0))).level == "ok"


@pytest.mark.parametrize("of", ["queue", "task", "key"])
def test_permits_that_are_held_for_long_are_a_notice_while_jobs_wait_for_them(
    engine: Engine, database_url: str, of: str
) -> None:
    """Long runs with nothing behind them are nobody's ill."""
    with engine.begin() as connection:
        limit(connection, "a_task" if of == "task" else "sync", owner="task" if of == "task" else "queue", **{"key_running" if of == "key" else "running": 1})  # fmt: skip
        held = make_job(
            connection, "running", queue="sync", concurrency_key="42", claimed_at=-2 * HOUR, lease_expires_at=HOUR
        )
    assert about_limits(database_url).level == "ok"
    with engine.begin() as connection:
        make_job(connection, queue="sync", concurrency_key="42")

    finding = about_limits(database_url)

    name = {"queue": "queue sync", "task": "task a_task", "key": "queue sync key 42"}[of]
    assert finding.level == "notice"
    assert (
        f"have been held for a long time, and jobs wait for them: {name} (1 of 1: job {held}, for 2h or more)"
        in finding.detail
    )
    assert "sa-jobqueue show ID" in finding.advice
    assert about_limits(database_url, Thresholds(permits_held=86_400)).level == "ok"


@pytest.fixture
def worker(database_url: str) -> Iterator[None]:
    """The row of a live worker that serves "mail" and knows "send"."""
    with connect(database_url) as connection:
        connection.execute(ABLE_WORKER, [60.0, '{"send": {"timeout": null, "aliases": ["old_send"]}}'])
        yield


def limit_some(engine: Engine) -> None:
    with engine.begin() as connection:
        for name in ("mail", "mial"):
            limit(connection, name, running=3, held=True)
        for name in ("send", "old_send", "snde"):
            limit(connection, name, owner="task", paused_at=NOW)
        limit(connection, "declared", running=3, declared=None)


@pytest.mark.usefixtures("worker")
def test_a_name_that_nothing_has_is_a_notice(engine: Engine, database_url: str) -> None:
    """As a misspelt one is. What code declares is no operator's mistake."""
    limit_some(engine)
    finding = about_limits(database_url)
    assert finding.level == "notice"
    assert "no job, schedule or live worker has that name: queue mial, task snde;" in finding.detail
    with engine.begin() as connection:
        make_job(connection, queue="mial", task="snde")
    assert "has that name" not in about_limits(database_url).detail


def test_a_name_is_not_judged_where_it_may_be_known(engine: Engine, database_url: str) -> None:
    """Without workers, or with one that says nothing of its tasks, or if jobs of it have run today."""
    limit_some(engine)
    assert about_limits(database_url).level == "ok"
    with connect(database_url) as connection:
        connection.execute(ABLE_WORKER, [60.0, "{}"])
        assert "has that name: queue mial;" in about_limits(database_url).detail
        connection.execute(
            "INSERT INTO sa_jobqueue.stat (seconds, at, queue, task, completed, failed, retried, cancelled, snoozed, suspended, released,"
            " rescued, lost, run_seconds, wait_seconds, runs, waits) VALUES (60, date_trunc('minute', now()), 'mial', 'snde', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,"
            " array_fill(0, ARRAY[18]), array_fill(0, ARRAY[18]))"
        )
    assert about_limits(database_url).level == "ok"


def test_long_rings_and_states_are_told(engine: Engine, database_url: str) -> None:
    """In words and in numbers, whatever else is found."""
    with engine.begin() as connection:
        limit(connection, "sync", **rate(5, prefix="key_"))
        for n in range(120):
            make_job(connection, queue="sync", concurrency_key=f"k{n}")
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.limit_state (owner, name, key) VALUES ('queue', 'sync', 'k1'), ('queue', 'sync', 'k2')"
        )
    finding = about_limits(database_url)
    assert (
        finding.detail == "1 queue or task has limits or a pause; keys that take turns: 120 in sync; 2 states are kept"
    )
    assert (finding.numbers["keys"], finding.numbers["states"]) == (120, 2)
