"""`sa-jobqueue schedule`: look at schedules, make, pause and run them, and backfill what was missed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Schedule, TaskName, every
from sa_jobqueue.enqueueing.backfill import plan_backfill
from sa_jobqueue.sql.schedules.due import Ticked
from sa_jobqueue.sql.store import default_store
from tests.integration.test_cli_jobs import in_terminal
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.factory import TABLE, make_job
from tests.support.waiting import wait_until

SCHEDULE = Schedule.__table__
REPORT = TaskName("shop.report")


def make(engine: Engine, name: str, rule: Any = "0 * * * *", **columns: Any) -> int:
    """Make a schedule, and then set these columns of it."""
    with Session(engine) as session:
        schedule = Schedule(rule, REPORT, name=name)
        session.add(schedule)
        session.commit()
        id = schedule.id
    if columns:
        with engine.begin() as connection:
            connection.execute(update(SCHEDULE).where(SCHEDULE.c.id == id).values(**columns))
    return id


def schedule(engine: Engine, name: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(select(SCHEDULE).where(SCHEDULE.c.name == name)).one()


def ticks(engine: Engine, id: int) -> Sequence[datetime]:
    with engine.connect() as connection:
        found = connection.scalars(select(TABLE.c.tick_at).where(TABLE.c.schedule_id == id).order_by(TABLE.c.tick_at))
        return [at.astimezone(UTC) for at in found]


def enqueue_due(engine: Engine) -> None:
    with engine.begin() as connection:
        default_store.enqueue_due(connection, Ticked(), limit=100, random=lambda: 0.0)


# ---- looking


def test_list_says_when_each_is_due_and_why_one_is_not(engine: Engine, url: str) -> None:
    """Paused with its reason, bad with its error, and the last job of each."""
    id = make(engine, "hourly", next_at=datetime(2096, 1, 1, tzinfo=UTC))
    make(engine, "paused", paused_at=datetime.now(UTC), paused_by="operator", pause_reason="an audit")
    make(engine, "bad", error="there is no time zone 'Mars'")
    with engine.begin() as connection:
        make_job(connection, "completed", schedule_id=id, finished_at=timedelta(hours=-3))
        last = make_job(connection, "failed", schedule_id=id, finished_at=timedelta(hours=-2))
    bad, hourly, paused = output("schedule", "list", url=url).splitlines()[1:]
    assert "error: there is no time zone 'Mars'" in bad
    assert "failed 2h ago" in hourly
    assert " in " in hourly
    assert "  paused  " in paused
    assert "an audit (" in paused
    found = {row["name"]: row for row in as_json("schedule", "list", url=url)}
    assert {name: row["state"] for name, row in found.items()} == {"bad": "bad", "hourly": "active", "paused": "paused"}
    assert found["hourly"]["last_job"]["id"] == last
    assert found["paused"]["last_job"] is None


def test_a_job_that_has_not_finished_is_the_last_one(engine: Engine, url: str) -> None:
    """That is the one that an operator asks about."""
    id = make(engine, "hourly")
    with engine.begin() as connection:
        running = make_job(connection, "running", schedule_id=id)
        make_job(connection, "completed", schedule_id=id)
    (row,) = as_json("schedule", "list", url=url)
    assert (row["last_job"]["id"], row["last_job"]["status"]) == (running, "running")


def test_list_fits_into_80_columns(engine: Engine, url: str) -> None:
    """With the reason of a pause as far as it fits."""
    make(engine, "the nightly report of all regions", "30 7 * * mon-fri")
    make(engine, "clean up", every(300), paused_at=datetime.now(UTC), pause_reason="the provider is down until Monday")
    shown = in_terminal("schedule", "list", url=url, columns=80)
    assert "the nightly report" in shown
    assert "every 300 s" in shown
    assert "the provider is" in shown


def test_list_says_what_a_schedule_waits_for_and_which_has_no_tick_left(engine: Engine, url: str) -> None:
    """A rule that cannot be read has no time at all."""
    make(engine, "last", next_at=datetime(9999, 12, 31, tzinfo=UTC))
    make(engine, "unreadable", expression="every now and then")
    id = make(engine, "waiting", next_at=datetime(2096, 1, 1, tzinfo=UTC), waiting_since=datetime.now(UTC))
    with engine.begin() as connection:
        job = make_job(connection, "running", schedule_id=id)
    last, unreadable, waiting = output("schedule", "list", url=url).splitlines()[1:]
    assert last.split()[-1] == "never"
    assert not re.search(r" (in|due|never)\b", unreadable)
    assert f"waits for the end of job {job}" in waiting


def test_without_schedules_list_says_how_to_make_one(url: str) -> None:
    """Exit code 0, and an empty list as JSON."""
    result = invoke("schedule", "list", url=url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert notes(result).startswith("no schedules; make one with")
    assert as_json("schedule", "list", url=url) == []


def test_next_shows_the_times_in_the_zone_and_in_utc(engine: Engine, url: str) -> None:
    """From the tick in the row on."""
    make(
        engine, "daily", next_at=datetime(2096, 3, 23, 6, tzinfo=UTC), timezone="Europe/Vienna", expression="0 7 * * *"
    )
    with engine.begin() as connection:  # the trigger has taken the tick away, because the rule is new
        connection.execute(update(SCHEDULE).values(next_at=datetime(2096, 3, 23, 6, tzinfo=UTC)))
    header, first, *_, last = output("schedule", "next", "daily", "-n", "3", url=url).splitlines()
    assert header.split() == ["EUROPE/VIENNA", "UTC", "WHEN"]
    assert first.startswith("Fri 2096-03-23 07:00:00 +01:00  2096-03-23 06:00:00  in ")
    assert last.startswith("Sun 2096-03-25 07:00:00 +02:00  2096-03-25 05:00:00  in ")
    found = as_json("schedule", "next", "daily", "-n", "1", url=url)
    assert found == [{"utc": "2096-03-23T06:00:00+00:00", "local": "2096-03-23T07:00:00+01:00"}]


def test_next_of_an_interval_has_one_column_of_times(engine: Engine, url: str) -> None:
    """It has no zone. A paused one counts from now, and says why it is paused."""
    make(engine, "often", every(300), paused_at=datetime.now(UTC), pause_reason="an audit")
    result = invoke("schedule", "next", "often", url=url)
    assert result.stdout.splitlines()[0].split() == ["UTC", "WHEN"]
    assert len(result.stdout.splitlines()) == 6
    assert re.fullmatch(r"paused: an audit \(\ds ago\); the times count from now\n", notes(result))


@pytest.mark.parametrize("command", [("next",), ("run",), ("backfill", "--from", "2d")], ids=" ".join)
def test_a_name_that_is_not_there_is_said(url: str, command: tuple[str, ...]) -> None:
    """Exit code 1, as for a job that does not exist."""
    result = invoke("schedule", command[0], "gone", *command[1:], url=url)
    assert result.exit_code == 1
    assert "there is no schedule 'gone'" in result.stderr


def test_a_name_that_no_schedule_can_have_is_refused(url: str) -> None:
    """With its length."""
    assert "a schedule's name has 1 to 200 characters, not 201" in refused("schedule", "next", "n" * 201, url=url)


# ---- making


def test_add_makes_a_schedule_and_says_when_it_is_first_due(engine: Engine, url: str) -> None:
    """With the options of `Schedule`."""
    result = invoke(
        "schedule", "add", "0 7 * * mon-fri", "shop.report", '{"region": "EU"}', "--timezone", "Europe/Vienna", "--name",
        "EU", "--queue", "slow", "--missed", "all", "--catch-up", "6h", "--jitter", "90s", "--pause-after", "3", "--expires-in", "10m",
        "--deadline", "2h", "--key", "42", "--units", "3", url=url,
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "EU\n"), result.stderr
    assert notes(result).startswith("shop.report · queue slow · 0 7 * * mon-fri · first at ")
    row = schedule(engine, "EU")
    assert (row.expression, row.timezone, row.args, row.queue) == (
        "0 7 * * mon-fri", "Europe/Vienna", {"region": "EU"}, "slow"
    )  # fmt: skip
    assert (row.missed, row.catch_up, row.jitter, row.pause_after) == ("all", 21_600.0, 90.0, 3)
    (listed,) = as_json("schedule", "list", url=url)
    assert (listed["expires_in"], listed["deadline"]) == (600.0, 7_200.0)
    assert (listed["concurrency_key"], listed["units"]) == ("42", 3)


@pytest.mark.parametrize(("said", "stored"), [("every 5m", "every 300 s"), ("every 1h30m", "every 5400 s"), ("every 300 s", "every 300 s")])  # fmt: skip
def test_add_takes_intervals(engine: Engine, url: str, said: str, stored: str) -> None:
    """As durations are given elsewhere, and as `list` shows them."""
    assert as_json("schedule", "add", said, "shop.report", url=url)["name"] == "shop.report"
    assert schedule(engine, "shop.report").expression == stored


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["0 25 * * *", "shop.report"], "the hour is wrong"),
        (["every", "shop.report"], "an interval is given as"),
        (["every 5 parsecs", "shop.report"], "an interval is given as"),
        (["0 7 * * *", "shop.report", "[1]"], "the arguments must be a JSON object"),
        (["0 7 * * *", "shop.report", "--timezone", "Mars"], "there is no time zone 'Mars'"),
        (["0 7 * * *", "shop.report", "--overlap", "never"], "must be one of allow, skip, queue_one, cancel_running"),
        (["0 7 * * *", "shop.report", "--catch-up", "500ms"], "catch_up must be at least 1 second, not 0.5"),
        (["0 7 * * *", "shop.report", "--expires-in", "0s"], "expires_in must be more than 0 seconds"),
        (["0 7 * * *", "shop.report", "--deadline", "1m", "--jitter", "5m"], "deadline must be longer than its jitter, 300 s"),
        (["0 7 * * *", "shop.report", "--units", "0"], "units must be an integer from 1 to 32,767, not 0"),
        (["0 7 * * *", "shop.report", "--name", "taken"], "there is a schedule 'taken' already"),
    ],
)  # fmt: skip
def test_add_refuses_what_cannot_be_used(engine: Engine, url: str, arguments: list[str], reason: str) -> None:
    """In one line, with the value; and makes nothing."""
    make(engine, "taken")
    assert reason in refused("schedule", "add", *arguments, url=url)
    assert [row["name"] for row in as_json("schedule", "list", url=url)] == ["taken"]


# ---- pausing, resuming, removing


def test_a_paused_schedule_enqueues_nothing_until_it_is_resumed(engine: Engine, url: str) -> None:
    """And then counts from the end of the pause."""
    id = make(engine, "hourly", counts_from=datetime.now(UTC) - timedelta(hours=5))
    assert output("schedule", "pause", "hourly", "--reason", "an audit", url=url) == "paused hourly\n"
    enqueue_due(engine)
    row = schedule(engine, "hourly")
    assert (ticks(engine, id), row.paused_by, row.pause_reason) == ([], "operator", "an audit")
    assert output("schedule", "resume", "hourly", url=url) == "resumed hourly\n"
    enqueue_due(engine)
    row = schedule(engine, "hourly")
    assert (ticks(engine, id), row.paused_at, row.pause_reason) == ([], None, None)
    assert row.next_at > datetime.now(UTC) - timedelta(minutes=1)


def test_an_operators_pause_takes_the_place_of_another(engine: Engine, url: str) -> None:
    """So a deployment that declares the schedule again does not resume it. It is paused since then."""
    since = datetime(2026, 1, 1, tzinfo=UTC)
    make(engine, "old", paused_at=since, paused_by="undeclared", pause_reason="no code")
    output("schedule", "pause", "old", url=url)
    row = schedule(engine, "old")
    assert (row.paused_at, row.paused_by, row.pause_reason) == (since, "operator", "paused by an operator")


def test_names_that_were_not_touched_are_said(engine: Engine, url: str) -> None:
    """Exit code 1; the others were."""
    make(engine, "a", paused_at=datetime.now(UTC))
    make(engine, "b")
    result = invoke("schedule", "resume", "a", "b", "c", url=url)
    assert (result.exit_code, result.stdout) == (1, "resumed a\n")
    assert notes(result) == "not touched: b (is not paused), c (no such schedule)\n"
    answer = json.loads(invoke("schedule", "remove", "a", "c", "--json", url=url).stdout)
    assert answer == {"action": "removed", "schedules": ["a"], "not_touched": {"c": "no such schedule"}}


def test_all_is_asked_for_by_all(engine: Engine, url: str) -> None:
    """For pause and resume; schedules are removed by their names."""
    make(engine, "a")
    make(engine, "b")
    for verb in ("pause", "resume", "remove"):
        assert "say which schedules" in refused("schedule", verb, url=url)
    assert "contradict" in refused("schedule", "pause", "a", "--all", url=url)
    assert output("schedule", "pause", "--all", url=url) == "paused a, b\n"
    assert output("schedule", "resume", "--all", url=url) == "resumed a, b\n"
    assert output("schedule", "resume", "--all", url=url) == "resumed no schedule\n"


def test_jobs_stay_when_their_schedule_is_removed(engine: Engine, url: str) -> None:
    """They were enqueued, and will run."""
    id = make(engine, "hourly")
    output("schedule", "run", "hourly", url=url)
    assert output("schedule", "remove", "hourly", url=url) == "removed hourly\n"
    assert len(ticks(engine, id)) == 1


# ---- running and backfilling


def test_run_enqueues_a_job_beside_the_plan(engine: Engine, url: str) -> None:
    """Also if it is paused; the next tick stays."""
    next_at = datetime(2096, 1, 1, tzinfo=UTC)
    id = make(engine, "hourly", next_at=next_at)
    number = output("schedule", "run", "hourly", url=url).strip()
    output("schedule", "pause", "hourly", url=url)
    assert as_json("schedule", "run", "hourly", url=url)["schedule"] == "hourly"
    with engine.connect() as connection:
        job = connection.execute(select(TABLE).where(TABLE.c.id == int(number))).one()
    assert (job.task, job.ticks, job.status.value) == ("shop.report", 1, "queued")
    assert abs(job.tick_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert len(ticks(engine, id)) == 2
    assert schedule(engine, "hourly").next_at == next_at


def test_a_backfill_enqueues_each_tick_that_has_no_job(engine: Engine, url: str) -> None:
    """The preview says the same and changes nothing; a second one has nothing to do."""
    id = make(engine, "hourly")
    arguments = ("schedule", "backfill", "hourly", "--from", "2026-03-01T05:00", "--to", "2026-03-01T10:00+00:00")
    with engine.begin() as connection:
        job = make_job(connection, "completed", schedule_id=id)
        connection.execute(
            update(TABLE).where(TABLE.c.id == job).values(tick_at=datetime(2026, 3, 1, 7, tzinfo=UTC), ticks=3)
        )
    preview = invoke(*arguments, "--dry-run", url=url)
    assert preview.stdout == "would enqueue 4 jobs, for 2026-03-01 05:00:00+00:00 to 2026-03-01 09:00:00+00:00\n"
    assert notes(preview) == "ticks left out, because their jobs are in the table: 1\n"
    assert len(ticks(engine, id)) == 1
    answer = as_json(*arguments, url=url)
    assert (answer["count"], answer["there"], answer["dry_run"]) == (4, 1, False)
    assert [at.hour for at in ticks(engine, id)] == [5, 6, 7, 8, 9]
    assert output(*arguments, url=url) == "enqueued 0 jobs\n"


def test_a_time_without_a_zone_is_in_the_schedules_own(engine: Engine, url: str) -> None:
    """A day in Vienna begins at 23:00 UTC."""
    id = make(engine, "hourly", timezone="Europe/Vienna")
    output("schedule", "backfill", "hourly", "--from", "2026-03-01", "--to", "2026-03-01T02:00", url=url)
    assert [at.hour for at in ticks(engine, id)] == [23, 0]


def test_ticks_that_workers_deal_with_are_left_to_them(engine: Engine, url: str) -> None:
    """Else each would be enqueued twice. While a schedule is paused, none of them are."""
    now = datetime.now(UTC)
    id = make(engine, "hourly", next_at=now - timedelta(hours=2), counts_from=now - timedelta(days=9))
    enqueued = as_json("schedule", "backfill", "hourly", "--from", "5h", url=url)
    assert enqueued["count"] == 3
    assert enqueued["left_from"] is not None
    enqueue_due(engine)
    assert len(set(ticks(engine, id))) == len(ticks(engine, id)) == 4  # the last is one job for two or three ticks
    output("schedule", "pause", "hourly", url=url)
    rest = as_json("schedule", "backfill", "hourly", "--from", "5h", url=url)
    assert (rest["count"] + rest["there"], rest["left_from"]) == (5, None)


def test_a_new_schedule_leaves_what_is_to_come_to_the_workers(engine: Engine, url: str) -> None:
    """Also before a worker has seen it."""
    make(engine, "new", "* * * * *")
    start = schedule(engine, "new").counts_from - timedelta(minutes=3)
    answer = as_json("schedule", "backfill", "new", "--from", start.isoformat(), "--to", "2096-01-01", url=url)
    assert answer["count"] == 3
    assert datetime.fromisoformat(answer["left_from"]) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--from", "yesterday"], "--from must be a time, as"),
        (["--from", "2026-03-01", "--to", "2026-02-01"], "--to must be later than --from"),
        (["--from", "2016-01-01"], "there are more than 100,000 ticks"),
        (["--from", "0001-01-01"], "give a later time"),
    ],
)
def test_backfill_refuses_a_range_that_cannot_be_used(
    engine: Engine, url: str, arguments: list[str], reason: str
) -> None:
    """And enqueues nothing."""
    id = make(engine, "often", "* * * * *")
    assert reason in refused("schedule", "backfill", "often", *arguments, url=url)
    assert ticks(engine, id) == []


def test_two_backfills_at_once_enqueue_each_tick_once(engine: Engine, url: str) -> None:
    """The second waits for the first, and then sees its jobs; and no worker moves the schedule on meanwhile."""
    id = make(engine, "hourly")
    start, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)
    results: list[int] = []

    def second() -> None:
        with engine.begin() as connection:
            plan = plan_backfill(connection, "hourly", start, end)
            assert plan is not None
            plan.enqueue(connection)
            results.append(len(plan.ticks))

    thread = threading.Thread(target=second)
    with engine.begin() as connection:
        plan = plan_backfill(connection, "hourly", start, end)
        assert plan is not None
        thread.start()
        with engine.connect() as other:
            blocked = text(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            wait_until(lambda: _fresh(other, blocked) == 1)
        enqueue_due(engine)
        plan.enqueue(connection)
    thread.join()
    assert (len(plan.ticks), results) == (24, [0])
    assert len(ticks(engine, id)) == 24


def _fresh(connection: Any, statement: Any) -> Any:
    found = connection.scalar(statement)
    connection.rollback()
    return found
