"""A standby as the reader of the dashboard: pages are read from it, and what is done is done on the primary."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Schedule, TaskName, Workflow
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import AuditEntry
from sa_jobqueue.statements import pause, set_limit
from tests.faults.server import Guard, How, Server
from tests.support.archiving import move
from tests.support.browsing import Viewer
from tests.support.busy_scene import add_stats, make_worker
from tests.support.factory import make_job, statuses
from tests.support.folders import make_server_folder
from tests.support.waiting import wait_until

A_TASK = TaskName("shop.report")


class Scene(NamedTuple):
    """A primary with a bit of everything, and a standby that follows it."""

    primary: Server
    standby: Server
    failed: int
    archived: int
    schedule: int
    workflow: int

    def follow(self) -> None:
        """Wait until the standby has all that was committed."""
        ((lsn,),) = self.primary.execute("SELECT pg_current_wal_flush_lsn()::text")
        wait_until(lambda: self.standby.has_followed(str(lsn)))


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        folder = make_server_folder("sajq_replica-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        guard = Guard()
        stack.callback(guard.close)
        primary = Server.make(folder / "primary", guard)
        stack.callback(primary.remove)
        primary.start()
        upgrade_database(primary.url())
        engine = create_engine(primary.url())
        with engine.begin() as connection:
            ids = fill(connection)
        engine.dispose()
        standby = primary.copy(folder / "standby")
        stack.callback(standby.remove)
        made = Scene(primary, standby, *ids)
        made.follow()
        yield made


def fill(connection: Connection) -> tuple[int, int, int, int]:
    """Something for each page."""
    worker = make_worker(connection, queues=["mail"])
    make_job(connection, "running", queue="mail", worker=str(worker), concurrency_key="acme")
    make_job(connection, queue="mail", concurrency_key="acme")
    failed = make_job(connection, "failed", queue="mail", errors=[{"type": "shop.Down", "message": "no answer"}])
    moved = make_job(connection, "completed", queue="mail")
    move(connection, moved)
    connection.execute(set_limit("mail", running=1))
    connection.execute(pause("sync", reason="the provider is down"))
    add_stats(connection, "mail", "a_task")
    connection.execute(insert(AuditEntry).values(who="ada", action="retry", count=1, target={"id": ["1"]}))
    session = Session(connection, join_transaction_mode="create_savepoint")
    session.add(Schedule("0 * * * *", A_TASK, name="report"))
    flow = Workflow("nightly")
    flow.after(flow.add(A_TASK), A_TASK)
    session.add(flow)
    session.commit()
    schedule, workflow = (
        int(connection.scalar(select(func.max(one.id))))
        for one in (Schedule, Workflow)  # type: ignore[attr-defined]
    )
    return failed, moved, schedule, workflow


@pytest.fixture
def primary(scene: Scene) -> Iterator[Engine]:
    engine = create_engine(scene.primary.url())
    yield engine
    engine.dispose()


@pytest.fixture
def reader(scene: Scene) -> Iterator[Engine]:
    engine = create_engine(scene.standby.url())
    yield engine
    engine.dispose()


def paths(scene: Scene) -> dict[str, str]:
    """Each page by its name, and some that ask for more."""
    ids = {"jobs": scene.failed, "schedules": scene.schedule, "workflows": scene.workflow}
    found = {page.name: re.sub(r"\{[^}]*\}", str(ids.get(page.path.split("/")[1], 1)), page.path) for page in PAGES}
    return {
        **found,
        "an archived job": f"/jobs/{scene.archived}",
        "jobs of a filter": "/jobs?queue=mail&error=Down",
        "a preview": f"/schedules/{scene.schedule}/backfill?from=2026-01-01&to=2026-01-02",
        "a group of errors": "/errors?task=a_task",
    }


def test_every_page_is_read_from_the_standby(scene: Scene, primary: Engine, reader: Engine) -> None:
    """And nothing of the primary."""
    seen: list[str] = []
    viewer = Viewer(primary, read_from=reader)

    def note(*_: Any) -> None:
        seen.append("asked")

    event.listen(primary, "before_cursor_execute", note)
    for name, path in paths(scene).items():
        answer = viewer.get(path)
        assert answer.status_code == 200, (name, answer.text)
        assert "Read from a replica." in answer.text
        assert "it was given up" not in answer.text, name
    assert seen == []
    assert "/archived" in viewer.see("/jobs").links


def test_what_is_done_is_done_on_the_primary(scene: Scene, primary: Engine, reader: Engine) -> None:
    """With its preview from the standby; the page that comes then may lag."""
    viewer = Viewer(primary, read_from=reader)
    with primary.begin() as connection:
        id = make_job(connection, "failed", queue="acts")
    scene.follow()
    assert "Run 1 job again" in re.sub(r"\s+", " ", viewer.send("retry", {"queue": "acts"}).text)
    assert "Retried 1 job." in viewer.do("retry", queue="acts").text
    with primary.connect() as connection:
        assert statuses(connection)[id] == "queued"
        assert connection.scalar(select(func.count()).where(AuditEntry.target.contains({"queue": ["acts"]}))) == 1
    scene.follow()
    assert "/act/cancel" in viewer.see(f"/jobs/{id}").html


def test_a_standby_as_the_only_engine_may_be_looked_at(scene: Scene, reader: Engine) -> None:
    """What would change something says what is wrong."""
    viewer = Viewer(reader)
    assert f"/jobs/{scene.failed}" in viewer.see("/jobs").links
    answer = viewer.send("retry", {"id": scene.failed})
    assert answer.status_code == 409
    assert "can only be read" in answer.text


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_standby_that_is_away_is_said_and_its_return_is_seen(scene: Scene, primary: Engine, kind: str) -> None:
    """Meanwhile what is done is done, on the primary; the same engine is used all along."""
    url = scene.standby.url()
    reader: Any = create_engine(url) if kind == "sync" else create_async_engine(url)
    viewer = Viewer(primary, read_from=reader)
    with viewer.client, primary.begin() as connection:
        # A page that is kept for a second would still be shown.
        assert viewer.get("/queues").status_code == 200
        id = make_job(connection, "failed", queue="away")
        connection.commit()
        scene.standby.end(How.IMMEDIATE)
        try:
            for path in ("/", "/jobs", f"/jobs/{scene.failed}", "/archived", "/database"):
                answer = viewer.get(path)
                assert answer.status_code == 503, path
                assert "The database does not answer. This page tries again on its own." in answer.text
            assert "data-live" in viewer.get("/jobs").text
            assert viewer.send("retry", {"id": id}).status_code == 303
        finally:
            scene.standby.start()
        with primary.connect() as seeing:
            assert statuses(seeing)[id] == "queued"
        wait_until(lambda: viewer.get("/jobs").status_code == 200)
        wait_until(lambda: "/act/cancel" in viewer.get(f"/jobs/{id}").text)
        with primary.begin() as cleaning:
            cleaning.execute(text("DELETE FROM sa_jobqueue.job WHERE id = :id"), {"id": id})
        if kind == "sync":
            reader.dispose()
        else:
            assert viewer.client.portal is not None
            viewer.client.portal.call(reader.dispose)
