"""Schedules in the dashboard: what is said of each, and what can be done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import TaskName, every
from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Job, Schedule
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job

A_TASK = TaskName("shop.report")
HOUR = timedelta(hours=1)


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as made:
        yield made


def add(connection: Connection, rule: Any = "30 7 * * mon-fri", name: str = "report", **options: Any) -> int:
    """Add a schedule, and commit. `columns` are set afterwards."""
    columns = options.pop("columns", {})
    queue = options.pop("queue", "default")
    with Session(connection) as session:
        schedule = Schedule(rule, A_TASK.options(queue=queue), name=name, **options)
        session.add(schedule)
        session.commit()
        if columns:
            session.execute(update(Schedule).where(Schedule.id == schedule.id).values(**columns))
            session.commit()
        return schedule.id


def lately() -> str:
    """A time with some ticks after it, and not too many."""
    return (datetime.now(UTC) - timedelta(days=30)).isoformat()


def row(connection: Connection, id: int) -> Any:
    found = connection.execute(select(Schedule.__table__).where(Schedule.id == id)).one()
    connection.rollback()
    return found


def audited(connection: Connection) -> list[Any]:
    entries = select(AuditEntry.who, AuditEntry.action, AuditEntry.target, AuditEntry.count).order_by(AuditEntry.id)
    return [tuple(one) for one in connection.execute(entries)]


def test_a_schedule_is_said_in_words_with_its_next_five_times(engine: Engine, connection: Connection) -> None:
    """In its own zone: at 07:30 by the clock in Vienna, in summer and in winter."""
    add(connection, timezone="Europe/Vienna", columns={"counts_from": func.timestamptz("2026-10-22 00:00+00")})
    page = Viewer(engine).see("/schedules")
    assert "At 07:30 on Monday through Friday" in page.text
    assert "30 7 * * mon-fri" in page.text
    times = ["Thu 2026-10-22 07:30:00 +02:00", "Fri 2026-10-23 07:30:00 +02:00", "Mon 2026-10-26 07:30:00 +01:00"]
    assert [one for one in times if one not in page.text] == []
    assert page.text.count("07:30:00 +0") == 5


def test_an_interval_and_a_rule_without_more_times_are_said(engine: Engine, connection: Connection) -> None:
    add(connection, every(5_400), "often")
    assert "Every 1h 30m" in Viewer(engine).see("/schedules").text


def test_what_keeps_a_schedule_from_going_on_is_said(engine: Engine, connection: Connection) -> None:
    add(
        connection,
        name="a",
        columns={
            "paused_at": func.now(),
            "paused_by": "failures",
            "pause_reason": "3 in a row\npostgresql://u:secret@h/d",
        },
    )
    add(connection, name="b", columns={"error": "no such task", "left_out": 1_234})
    add(connection, name="c", columns={"paused_at": func.now(), "paused_by": "undeclared"})
    page = Viewer(engine).see("/schedules")
    for said in (
        "because its jobs failed",
        "3 in a row",
        "no such task",
        "because no code declares it any longer",
        "1,234",
    ):
        assert said in page.text
    assert "secret" not in page.html


def test_a_rule_that_cannot_be_read_is_said(engine: Engine, connection: Connection) -> None:
    """One that was written past the model; the others are shown all the same."""
    id = add(connection, name="a")
    add(connection, name="b")
    connection.execute(text("UPDATE sa_jobqueue.schedule SET expression = '99 99 * * *' WHERE name = 'a'"))
    connection.commit()
    page = Viewer(engine).see("/schedules")
    assert "a schedule's rule must be" in page.text
    assert "At 07:30" in page.text
    assert "a schedule's rule must be" in Viewer(engine).see(f"/schedules/{id}/backfill", expected=400).text


def test_the_last_job_is_a_link(engine: Engine, connection: Connection) -> None:
    id = add(connection, columns={"last_tick_at": func.now() - HOUR})
    job = make_job(connection, "failed", schedule_id=id, tick_at=-HOUR, ticks=1)
    connection.commit()
    page = Viewer(engine).see("/schedules")
    assert f"/jobs/{job}" in page.links
    assert "1h ago" in page.text


def test_schedules_come_a_page_at_a_time(engine: Engine, connection: Connection) -> None:
    for number in range(53):
        add(connection, name=f"number {number:02}")
    viewer = Viewer(engine)
    first = viewer.see("/schedules")
    (link,) = [found["href"] for found in first.all("a", rel="next")]
    second = viewer.see(str(link))
    assert "number 49" in first.text
    assert "number 50" not in first.text
    assert "number 49" not in second.text
    assert "number 52" in second.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"name": "PORT"}, ["report", "report%"]),
        ({"name": "t%"}, ["report%"]),
        ({"queue": "mail"}, ["post"]),
        ({"task": "shop.report", "state": "paused"}, ["report"]),
        ({"state": "bad"}, ["post"]),
        ({"task": "other"}, []),
    ],
)
def test_schedules_are_filtered(
    engine: Engine, connection: Connection, query: dict[str, str], found: list[str]
) -> None:
    add(connection, columns={"paused_at": func.now()})
    add(connection, name="report%")
    add(connection, name="post", queue="mail", columns={"error": "bad"})
    page = Viewer(engine).see("/schedules", **query)
    shown = [name for name in ("report", "report%", "post") if f'<th scope="row">{name}<' in page.html]
    assert shown == found


# ---- actions


def test_a_schedule_is_paused_with_a_reason_and_resumed(engine: Engine, connection: Connection) -> None:
    id = add(connection)
    viewer = Viewer(engine, Access.OPERATE.named("ada"))
    page = viewer.do("pause_schedule", id=id, reason="the provider is down", next="/schedules")
    assert "Paused the schedule report." in page.text
    assert "by an operator" in page.text
    assert "the provider is down (ada)" in page.text
    assert row(connection, id).paused_by == "operator"
    assert "Resumed the schedule report, " in viewer.do("resume_schedule", id=id).text
    assert row(connection, id).paused_at is None
    assert "Nothing was changed." in viewer.do("resume_schedule", id=id).text
    assert audited(connection) == [
        ("ada", "pause_schedule", {"id": [str(id)], "name": ["report"]}, 1),
        ("ada", "resume_schedule", {"id": [str(id)], "name": ["report"]}, 1),
    ]


def test_a_schedule_is_run_now(engine: Engine, connection: Connection) -> None:
    id = add(connection)
    assert "Enqueued 1 job of the schedule report." in Viewer(engine).do("run_schedule", id=id).text
    assert connection.scalars(select(Job.schedule_id)).all() == [id]


def test_a_backfill_is_what_its_preview_has_said(engine: Engine, connection: Connection) -> None:
    """How many, and which times; and nothing is enqueued before, nor twice."""
    id = add(
        connection,
        "0 * * * *",
        timezone="Europe/Vienna",
        columns={
            "counts_from": func.timestamptz("2025-01-01 00:00+00"),
            "next_at": func.timestamptz("2025-11-01 00:00+00"),
        },
    )
    viewer = Viewer(engine, Access.ADMIN.named("ada"))
    path = f"/schedules/{id}/backfill"
    page = viewer.see(path, **{"from": "2025-10-26T00:00", "to": "2025-10-27T00:00"})
    assert "This would enqueue 25 jobs, due at once" in page.text  # the day on which the clock is put back
    assert "Sun 2025-10-26 00:00:00 +02:00" in page.text
    assert "Sun 2025-10-26 23:00:00 +01:00" in page.text
    assert "… and 5 between these …" in page.text
    assert connection.scalar(select(func.count()).select_from(Job)) == 0
    connection.rollback()
    fields = {str(one["name"]): one["value"] for one in page.all("input", type="hidden")}
    assert "Enqueued 25 jobs for past ticks of the schedule report." in viewer.do("backfill", **fields).text
    ticks = connection.scalars(select(Job.tick_at).order_by(Job.tick_at)).all()
    assert (len(ticks), ticks[0].isoformat(), ticks[-1].isoformat()) == (
        25,
        "2025-10-25T22:00:00+00:00",
        "2025-10-26T22:00:00+00:00",
    )
    ((who, action, target, count),) = audited(connection)
    assert (who, action, count) == ("ada", "backfill", 25)
    assert target == {"id": [str(id)], "name": ["report"], "from": ["2025-10-26T00:00"], "to": ["2025-10-27T00:00"]}
    connection.rollback()
    again = viewer.see(path, **{"from": "2025-10-26T00:00", "to": "2025-10-27T00:00"})
    assert "This would enqueue 0 jobs" in again.text
    assert "Ticks left out, because their jobs are in the table: 25." in again.text
    assert again.all("button", type="submit") != []
    assert "/act/" not in again.html


def test_a_backfill_up_to_now_ends_when_it_was_shown(engine: Engine, connection: Connection) -> None:
    id = add(connection, "0 * * * *", columns={"counts_from": func.now() - 100 * HOUR})
    page = Viewer(engine).see(f"/schedules/{id}/backfill", **{"from": lately()})
    fields = {str(one["name"]): one["value"] for one in page.all("input", type="hidden")}
    assert fields["to"] is not None
    assert "are left to the workers" in page.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"from": "soon"}, "expected a time such as 2030-01-31"),
        ({"from": "2030-01-02", "to": "2030-01-01"}, "expected a time after the first one"),
        ({"from": "1970-01-01"}, "there are more than 5,000 ticks"),
        ({"from": "0001-01-01"}, "from: '0001-01-01' was given"),
        ({"from": "2026-01-01", "to": "9999-12-31T23:59"}, None),
    ],
)
def test_a_range_that_cannot_be_used_is_said(
    engine: Engine, connection: Connection, query: dict[str, str], said: str | None
) -> None:
    """In the preview, and where it is sent all the same."""
    id = add(connection, "0 0 * * *", timezone="America/New_York")
    page = Viewer(engine).get(f"/schedules/{id}/backfill", **query)
    assert page.status_code == (200 if said is None else 400)
    if said is not None:
        assert said in Seen(page.text).text
        assert Viewer(engine).send("backfill", {"id": id, **query}).status_code == 400
    assert connection.scalar(select(func.count()).select_from(Job)) == 0


@pytest.mark.parametrize("action", ["pause_schedule", "resume_schedule", "run_schedule", "backfill"])
def test_a_schedule_that_is_not_there_is_said(engine: Engine, connection: Connection, action: str) -> None:
    fields = {"from": "2026-01-01"}
    assert Viewer(engine).send(action, {"id": 7, **fields}).status_code == 404
    assert Viewer(engine).send(action, {"id": "x", **fields}).status_code == 400
    assert Viewer(engine).send(action, fields).status_code == 400
    assert Viewer(engine).get("/schedules/7/backfill").status_code == 404
    assert Viewer(engine).get("/schedules/x/backfill").status_code == 400


@pytest.mark.parametrize(
    "access",
    [Access(can=Access.ADMIN.can, queues=["mail"]), Access(can=Access.ADMIN.can, where=Job.queue == "mail")],
    ids=["queues", "where"],
)
@pytest.mark.parametrize("action", ["pause_schedule", "resume_schedule", "run_schedule", "backfill"])
def test_a_viewer_reaches_the_schedules_of_their_queues_alone(
    engine: Engine, connection: Connection, access: Access, action: str
) -> None:
    """And a tenant reaches none: a schedule is nobody's."""
    id = add(connection, columns={"counts_from": func.now() - 100 * HOUR})
    viewer = Viewer(engine, access)
    assert viewer.send(action, {"id": id, "from": lately()}).status_code == 404
    assert viewer.get(f"/schedules/{id}/backfill").status_code in (403, 404)
    assert row(connection, id).paused_at is None
    assert connection.scalar(select(func.count()).select_from(Job)) == 0
    connection.rollback()
    mine = add(connection, name="mine", queue="mail")
    if access.queues is None:
        assert viewer.get("/schedules").status_code == 403
        assert viewer.send(action, {"id": mine, "from": lately()}).status_code == 404
    else:
        page = viewer.see("/schedules")
        assert "mine" in page.text
        assert "report" not in page.text.replace("shop.report", "")
        assert viewer.send(action, {"id": mine, "from": lately()}).status_code == 303
