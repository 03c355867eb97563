"""The pages of the tasks, and of a task or a queue."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine, func, insert, select, text, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import Job, LimitRow, Schedule, WorkerRow
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import Scene, add_stats, fill
from tests.support.factory import make_job

HOUR = timedelta(hours=1)


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        scene = fill(connection)
        known = {"shop.unused": {"queue": "mail", "timeout": None, "aliases": []}}
        connection.execute(update(WorkerRow).where(WorkerRow.id == scene.live).values(tasks=known, slots={"mail": 7}))
        return scene


def rows_of(page: Seen, id: str) -> list[str]:
    """The texts of the rows whose ids begin so."""
    parts = [part for part in page.html.split("<tr")[1:] if f'id="{id}-' in part.partition(">")[0]]
    return [Seen("<tr" + part.partition("</tr>")[0]).text for part in parts]


def test_each_task_is_a_row(engine: Engine, scene: Scene) -> None:
    """The most frequent first; also tasks that have only been enqueued, and those that a worker knows."""
    rows = rows_of(Viewer(engine, Access.READ).see("/tasks", window="1h"), "task")
    names = ["shop.send_receipt", "shop.sync_stock", "shop.index", "shop.report", "shop.unused"]
    assert [row.split(" ")[0] for row in rows] == names
    assert [row.split(" ")[1] for row in rows] == [
        "5.6",
        "0.6",
        "0.6",
        "1",
        "0",
    ]  # a minute, of the jobs of five minutes
    assert "/tasks/shop.index" in Viewer(engine).see("/tasks").links


def test_the_sums_of_a_day_are_read_again_once_the_viewer_has_the_page(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept for 15 seconds. The next page has the new sums."""
    now = [0.0]
    monkeypatch.setattr("sa_jobqueue.dashboard.shared.monotonic", lambda: now[0])
    viewer = Viewer(engine, Access.READ)
    viewer.see("/tasks")
    with engine.begin() as connection:
        add_stats(connection, "mail", "a_new_task")
    for seconds, has_new in ((16, False), (18, True)):
        now[0] = seconds
        assert ("a_new_task" in viewer.see("/tasks").text) is has_new


def test_a_task_has_a_page(engine: Engine, scene: Scene) -> None:
    """Rates, times, its slowest jobs, schedules and workers; and it is paused there."""
    with engine.begin() as connection:
        took = text("now() - interval '20 min'"), text("now() - interval '10 min'")
        slow = make_job(connection, "completed", task="shop.send_receipt", claimed_at=took[0], finished_at=took[1])
        connection.execute(insert(Schedule).values(name="each night", task="shop.send_receipt", expression="0 3 * * *"))
        failed = connection.scalar(text("SELECT sum(failed) FROM sa_jobqueue.stat WHERE task = 'shop.send_receipt'"))
    viewer = Viewer(engine)
    page = viewer.see("/tasks/shop.send_receipt")
    assert f"Failed {failed:,} " in page.text
    assert rows_of(page, "slow")[0].startswith(f"{slow} shop.send_receipt 10m")
    assert rows_of(page, "schedule")[0].startswith("each night")
    viewer.do("pause", owner="task", name="shop.send_receipt", reason="the provider is down")
    assert "the provider is down" in viewer.see("/tasks/shop.send_receipt").text
    with engine.connect() as connection:
        assert (
            connection.scalar(select(LimitRow.owner).where(LimitRow.pause_reason == "the provider is down")) == "task"
        )


def test_a_queue_has_a_page(engine: Engine, scene: Scene) -> None:
    """What waits, and the slots that its workers have for it."""
    page = Viewer(engine, Access.READ).see("/queues/mail")
    assert "Due now 12 15 queued" in page.text
    assert "Running 2 / 2" in page.text
    assert rows_of(page, "worker")[-1] == "web-1:4711 live 2 7 1.0"
    assert "/queues/mail" in Viewer(engine).see("/queues").links


@pytest.mark.parametrize("name", ["a/b?c=d#e 100%", "<b>", "größe"])
def test_a_name_may_have_any_characters(engine: Engine, name: str) -> None:
    """Its page, what refreshes the page, and the way back from an action."""
    with engine.begin() as connection:
        make_job(connection, "completed", task=name, queue=name)
    viewer = Viewer(engine)
    (path,) = [link for link in viewer.see("/tasks").links if link.startswith("/tasks/")]
    page = viewer.see(path)
    assert len(rows_of(page, "slow")) == 1
    (live,) = [found["hx-get"] for found in page.all("div", id="live")]
    assert len(rows_of(Seen(viewer.get(str(live), fragment=True).text), "slow")) == 1
    (back,) = {found["value"] for found in page.all("input", name="next")}
    assert "Paused" in viewer.do("pause", owner="task", name=name, next=back).text


def test_a_viewer_of_some_queues_sees_their_part_alone(engine: Engine, scene: Scene) -> None:
    """Other queues and their tasks do not exist for it, and a tenant sees no sums."""
    viewer = Viewer(engine, Access(can={"retry"}, queues={"sync"}))
    page = viewer.see("/tasks")
    assert [row.split(" ")[0] for row in rows_of(page, "task")] == ["shop.sync_stock"]
    assert "Ended 0 " in viewer.see("/tasks/shop.send_receipt").text
    assert viewer.get("/queues/mail").status_code == 404
    assert viewer.get("/queues/nothing").status_code == 404
    assert "web-1:4711" in viewer.see("/queues/sync").text
    tenant = Viewer(engine, Access(can={"retry"}, where=Job.concurrency_key == "42"))
    assert [tenant.get(path).status_code for path in ("/tasks", "/tasks/shop.index", "/queues/sync")] == [403] * 3


def test_a_chosen_time_that_is_short_is_made_longer(engine: Engine, scene: Scene) -> None:
    """A part of a chart near its end is such a time. A time in the future is refused."""
    with engine.connect() as connection:
        now = connection.scalar(select(func.now()))
    assert now is not None
    viewer = Viewer(engine, Access.READ)
    near = f"{now - timedelta(minutes=1):%Y-%m-%dT%H:%MZ}"
    assert "Tasks" in viewer.see("/tasks", **{"from": near, "to": near}).text
    assert viewer.get("/tasks", **{"from": f"{now + HOUR:%Y-%m-%dT%H:%MZ}"}).status_code == 400
