"""The page of the queues, and what is done to them there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Job, LimitRow
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import Scene, fill
from tests.support.factory import make_job, make_jobs, statuses


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        return fill(connection)


def row_of(page: Seen, queue: str) -> str:
    """The text of a queue's row, with ages to the minute."""
    html = page.html
    found = [part for part in html.split("<tr")[1:] if f">{queue}</a>" in part]
    assert len(found) == 1, found
    return re.sub(r"(\dm) \d+s", r"\1", Seen("<tr" + found[0].partition("</tr>")[0]).text)


def test_each_queue_is_a_row(engine: Engine, scene: Scene) -> None:
    """Due, queued, running and its limit, the oldest, in and out, how long jobs waited, workers."""
    page = Viewer(engine, Access.READ).see("/queues")
    mail = row_of(page, "mail").split(" ")
    assert mail[:6] == ["mail", "served", "12", "15", "2", "/"]
    assert row_of(page, "mail").startswith("mail served 12 15 2 / 2 2m")
    assert row_of(page, "reports").startswith("reports paused for 25m 5 5 0 1h")
    assert row_of(page, "index").startswith("index served 0 0 1 ")
    assert "/limits?name=mail" in page.links


def test_jobs_that_come_in_are_counted_by_queue(engine: Engine) -> None:
    """Those of the last five minutes, whatever has become of them since."""
    with engine.begin() as connection:
        make_jobs(connection, 10, queue="mail")
        make_jobs(connection, 5, "completed", queue="mail")
        connection.execute(
            text(
                "UPDATE sa_jobqueue.job SET created_at = now() - interval '10 min' WHERE id IN (SELECT min(id) FROM sa_jobqueue.job)"
            )
        )
    columns = row_of(Viewer(engine, Access.READ).see("/queues"), "mail").split(" ")
    # Fourteen in five minutes; due, queued, running and the age of the oldest come before.
    assert "2.8" in columns


def test_a_queue_is_paused_and_resumed(engine: Engine, scene: Scene) -> None:
    viewer = Viewer(engine, Access.OPERATE.named("ada"))
    assert (
        "Paused queue mail: running jobs go on" in viewer.do("pause", owner="queue", name="mail", next="/queues").text
    )
    assert re.match(r"mail paused for \d+s 12", row_of(viewer.see("/queues"), "mail"))
    assert "Resumed queue mail." in viewer.do("resume", owner="queue", name="mail", next="/queues").text
    assert "Nothing was changed." in viewer.do("resume", owner="queue", name="mail", next="/queues").text
    with engine.connect() as connection:
        assert connection.scalar(select(LimitRow.paused_at).where(LimitRow.name == "mail")) is None
        entries = connection.execute(
            select(AuditEntry.who, AuditEntry.action, AuditEntry.target, AuditEntry.count)
        ).all()
    assert [tuple(one) for one in entries] == [
        ("ada", "pause", {"owner": ["queue"], "name": ["mail"]}, 1),
        ("ada", "resume", {"owner": ["queue"], "name": ["mail"]}, 1),
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"owner": "worker", "name": "mail"}, "expected one of queue, task"),
        ({"owner": "queue"}, "expected the name of a queue"),
        ({"name": "x" * 201}, "1 to 200 characters"),
        ({"name": "mail", "key": "\x01task"}, "must not begin with"),
    ],
)
def test_a_form_that_cannot_be_read_is_said(engine: Engine, fields: dict[str, str], said: str) -> None:
    answer = Viewer(engine).send("pause", fields)
    assert answer.status_code == 400
    assert said in Seen(answer.text).text


def test_all_that_waits_in_a_queue_is_cancelled_once_it_is_confirmed(engine: Engine, scene: Scene) -> None:
    """With keys and without, due and later; what runs goes on, and other queues are left."""
    with engine.begin() as connection:
        make_jobs(connection, 2, queue="mail", concurrency_key="a")
        make_job(connection, queue="mail", concurrency_key="b", run_at="infinity")
        before = statuses(connection)
    viewer = Viewer(engine)
    page = Seen(viewer.send("cancel_queue", {"queue": "mail", "next": "/queues"}).text)
    assert "Cancel 18 waiting jobs of this queue" in page.text
    assert page.all("input", name="typed")
    assert 'name="typed"' in viewer.send("cancel_queue", {"queue": "mail", "confirmed": "yes", "typed": "sync"}).text
    with engine.connect() as connection:
        assert statuses(connection) == before
    assert "Cancelled 18 jobs of queue mail." in viewer.do("cancel_queue", queue="mail", next="/queues").text
    with engine.connect() as connection:
        after = statuses(connection)
        of_mail = set(connection.scalars(select(Job.id).where(Job.queue == "mail")))
    changed = {id for id in before if before[id] != after[id]}
    assert {(before[id], after[id]) for id in changed} == {("queued", "cancelled")}
    assert len(changed) == 18
    assert changed <= of_mail


def test_many_jobs_are_cancelled_in_several_transactions(engine: Engine) -> None:
    """The message names the queue, even if the last transaction finds no more jobs."""
    for number in (2_500, 1_000):
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO sa_jobqueue.job (queue, task) SELECT 'mail', 'send' FROM generate_series(1, {number})"
            )
        assert f"Cancelled {number:,} jobs of queue mail." in Viewer(engine).do("cancel_queue", queue="mail").text
    with engine.connect() as connection:
        assert list(connection.scalars(select(AuditEntry.count).order_by(AuditEntry.id))) == [1000, 1000, 500, 1000]


def test_a_job_that_another_transaction_holds_is_left_and_said(engine: Engine) -> None:
    """And the others are done, also where a whole page of them is held."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (queue, task) SELECT 'mail', 'send' FROM generate_series(1, 1001)"
        )
    with engine.connect() as holder:
        holder.execute(select(Job.id).order_by(Job.id).limit(1000).with_for_update())
        page = Viewer(engine).do("cancel_queue", queue="mail")
        holder.rollback()
    assert "another transaction had locked or changed them" in page.text
    with engine.connect() as connection:
        assert list(statuses(connection).values()).count("queued") >= 1000


def test_a_viewer_of_some_queues_sees_and_changes_these_alone(engine: Engine, scene: Scene) -> None:
    access = Access(can=Access.ADMIN.can, queues=["index"])
    viewer = Viewer(engine, access)
    page = viewer.see("/queues")
    assert row_of(page, "index")
    for other in ("mail", "sync", "reports"):
        assert other not in page.html.replace("hx-sync", "")
    for action, fields in (
        ("pause", {"name": "mail"}),
        ("pause", {"owner": "task", "name": "shop.index"}),
        ("resume", {"name": "reports"}),
        ("cancel_queue", {"queue": "mail", "confirmed": "yes"}),
        ("cancel_queue", {"queue": "mail"}),
    ):
        assert viewer.send(action, fields).status_code == 404, action
    assert "Paused" in viewer.do("pause", name="index", next="/queues").text


def test_a_viewer_of_some_jobs_pauses_nothing(engine: Engine, scene: Scene) -> None:
    """Others' jobs are in that queue as well; what waits is cancelled as far as it is theirs."""
    viewer = Viewer(engine, Access(can=Access.ADMIN.can, where=Job.priority == 9))
    assert viewer.send("pause", {"name": "mail"}).status_code == 404
    with engine.begin() as connection:
        make_jobs(connection, 3, queue="mail", priority=9)
    assert "Cancelled 3 jobs of queue mail." in viewer.do("cancel_queue", queue="mail").text


@pytest.mark.parametrize(
    ("can", "buttons"), [({"pause"}, {"/act/pause", "/act/resume"}), ({"discard"}, {"/act/cancel_queue"})]
)
def test_a_viewer_sees_the_buttons_that_they_may_use(engine: Engine, scene: Scene, can: Any, buttons: set[str]) -> None:
    page = Viewer(engine, Access(can=can)).see("/queues")
    assert {found["action"] for found in page.all("form", method="post")} == buttons
