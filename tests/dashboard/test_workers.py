"""The page of the workers, and asking one to drain: with a real worker process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, func, select, update

from sa_jobqueue import Job, JobStatus, Registry, enqueue
from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, WorkerRow
from sa_jobqueue.statements import drain_workers
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import Scene, fill, make_worker
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import working


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        return fill(connection)


def row_of(page: Seen, id: object) -> str:
    """The text of a worker's row."""
    return Seen(page.html.partition(f'id="worker-{id}"')[2].partition("</tr>")[0]).text.lstrip("> ")


def test_each_worker_is_a_row_with_how_it_is(engine: Engine, scene: Scene) -> None:
    """The stale one first."""
    page = Viewer(engine, Access.READ).see("/workers")
    assert row_of(page, scene.live).startswith("web-1:4711 live mail, sync 3 / 10 94 MB 4 ms 2h ")
    assert row_of(page, scene.stale).startswith("web-2:815 stale mail, sync 0 / 10")
    assert row_of(page, scene.held_back).startswith("batch-1:4711 held back a standby is 9 s behind")
    assert page.text.index("web-2:815") < page.text.index("batch-1:4711")
    assert "Live workers 2 1 stale" in page.text
    assert "Jobs running 4 slots: 14" in page.text


def test_a_worker_whose_lease_has_run_out_is_stale(engine: Engine) -> None:
    with engine.begin() as connection:
        id = make_worker(connection)
        make_job(connection, "running", worker=str(id), lease_expires_at=timedelta(seconds=-1))
    assert "stale" in row_of(Viewer(engine).see("/workers"), id)


def test_a_worker_is_asked_to_drain_once(engine: Engine, scene: Scene) -> None:
    viewer = Viewer(engine, Access.OPERATE.named("ada"))
    assert "Asked." in viewer.do("drain_worker", worker=scene.live, next="/workers").text
    page = viewer.see("/workers")
    assert "draining" in row_of(page, scene.live)
    assert str(scene.live) not in {found["value"] for found in page.all("input", name="worker")}
    assert "Nothing was changed." in viewer.do("drain_worker", worker=scene.live, next="/workers").text
    with engine.connect() as connection:
        (entry,) = connection.execute(select(AuditEntry.who, AuditEntry.target, AuditEntry.count)).all()
        assert tuple(entry) == ("ada", {"worker": [str(scene.live)]}, 1)
        asked = connection.scalars(select(WorkerRow.id).where(WorkerRow.drain_requested_at.is_not(None))).all()
    assert asked == [scene.live]


def test_it_is_said_that_a_worker_which_is_dead_hears_of_nothing(engine: Engine, scene: Scene) -> None:
    """Its row has no button for it; one may have gone since the page was read."""
    viewer = Viewer(engine)
    assert str(scene.stale) not in {found["value"] for found in viewer.see("/workers").all("input", name="worker")}
    assert "Asked, but the worker is stale." in viewer.do("drain_worker", worker=scene.stale, next="/workers").text


@pytest.mark.parametrize("given", ["", "7", "x" * 40])
def test_what_is_no_worker_is_said(engine: Engine, given: str) -> None:
    answer = Viewer(engine).send("drain_worker", {"worker": given})
    assert answer.status_code == 400
    assert "expected the id of a worker" in Seen(answer.text).text


def test_a_worker_that_is_gone_is_said(engine: Engine) -> None:
    assert "Nothing was changed." in Viewer(engine).do("drain_worker", worker=uuid4(), next="/workers").text


@pytest.mark.parametrize(
    "access", [Access(can=Access.ADMIN.can, queues=["mail"]), Access(can=Access.ADMIN.can, where=Job.queue == "mail")], ids=["queues", "where"]
)  # fmt: skip
def test_a_worker_does_not_drain_for_some_of_its_jobs(engine: Engine, scene: Scene, access: Access) -> None:
    """It serves the queues of others, too. They are not shown either."""
    viewer = Viewer(engine, access)
    assert viewer.send("drain_worker", {"worker": str(scene.live)}).status_code == 404
    if access.queues is not None:
        page = viewer.see("/workers")
        assert "/act/" not in page.html
        assert "sync" not in page.html.replace("hx-sync", "")
        assert "batch-1" not in page.html
        assert row_of(page, scene.live).startswith("web-1:4711 live mail 2 / 10")
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).where(WorkerRow.drain_requested_at.is_not(None))) == 0


def test_an_operator_sets_the_slots_of_a_worker(engine: Engine, scene: Scene) -> None:
    """The page shows the wanted slots and the reason of a refusal. The audit has the request. Forms of other sites are refused."""
    viewer = Viewer(engine, Access.OPERATE.named("ada"))
    form = {"worker": str(scene.live), "queue": "mail", "slots": "20"}
    refused = viewer.client.post("/act/set_slots", data=form, headers={"sec-fetch-site": "cross-site"})
    assert refused.status_code == 403
    assert "Asked for mail=20." in viewer.do("set_slots", **form, next="/workers").text
    assert "mail=20 wanted" in row_of(viewer.see("/workers"), scene.live)
    with engine.begin() as connection:
        (entry,) = connection.execute(select(AuditEntry.who, AuditEntry.target, AuditEntry.count)).all()
        assert tuple(entry) == ("ada", {"worker": [str(scene.live)], "queue": ["mail"], "slots": ["20"]}, 1)
        wanted = {"slots": {"mail": 20}}
        assert connection.scalars(select(WorkerRow.wanted).where(WorkerRow.id == scene.live)).one() == wanted
        connection.execute(update(WorkerRow).values(wanted=wanted | {"refused": "no room"}))
    assert "mail=20 refused: no room" in row_of(viewer.see("/workers"), scene.live)


@pytest.mark.parametrize(("queue", "slots"), [("", "1"), ("mail", "-1"), ("mail", "x"), ("mail", "10001")])
def test_slots_that_no_worker_can_have_are_refused(engine: Engine, scene: Scene, queue: str, slots: str) -> None:
    answer = Viewer(engine).send("set_slots", {"worker": str(scene.live), "queue": queue, "slots": slots})
    assert answer.status_code == 400
    assert "expected a queue and 0 to 10,000 slots" in Seen(answer.text).text


def test_a_statement_says_which_workers(engine: Engine, scene: Scene) -> None:
    with pytest.raises(ValueError, match="say which workers"):
        drain_workers()
    with pytest.raises(TypeError, match="takes conditions"):
        drain_workers(scene.live)  # type: ignore[arg-type]
    with engine.begin() as connection:
        statement = drain_workers(WorkerRow.host == "web-1")
        assert connection.scalars(statement).all() == [scene.live]
        assert connection.scalars(statement).all() == []


# ---- real workers


@pytest.fixture
def shop(database_url: str, engine: Engine, tmp_path: Path) -> Shop:
    with engine.begin() as connection:
        app.Base.metadata.create_all(connection)
    return Shop(database_url, engine, tmp_path)


def test_a_worker_process_that_is_asked_finishes_what_it_runs_and_ends(shop: Shop) -> None:
    """As on SIGTERM: nothing more is started, what waits is given back unspent, and its row is gone."""
    (running,) = shop.add(enqueue(app.held, "a"))
    with shop.work("--queue=default=1", "--lease=3") as worker:
        shop.wait_said("started-a")
        viewer = Viewer(shop.engine)
        ((id,),) = wait_until(lambda: shop.execute(select(WorkerRow.id)))
        viewer.do("drain_worker", worker=id)
        worker.wait_for("an operator asks this worker to drain")
        (later,) = shop.add(enqueue(app.nothing, 1))
        shop.go("a")
        assert worker.wait() == 0
    assert shop.job(running).status == JobStatus.COMPLETED
    job = shop.job(later)
    assert (job.status, job.attempt, job.rescues) == (JobStatus.QUEUED, 0, 0)
    assert shop.execute(select(WorkerRow.id)) == []


def test_a_worker_that_is_not_asked_works_on(engine: Engine, url: str) -> None:
    """Of two, the one that is asked ends, in an event loop of the application's, too."""
    registry = Registry()
    with working(url, registry, lease=3.0) as one, working(url, registry, lease=3.0) as other:
        wait_until(lambda: shown(engine) == {one.id, other.id})
        with engine.begin() as connection:
            connection.execute(drain_workers(WorkerRow.id == one.id))
        wait_until(lambda: not one.serving)
        wait_until(lambda: shown(engine) == {other.id})
        assert other.serving


def shown(engine: Engine) -> set[object]:
    with engine.connect() as connection:
        return set(connection.scalars(select(WorkerRow.id)))
