"""Queued jobs on the page of jobs: whatever lies around them, they are found, oldest due first, and counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, event, text

from sa_jobqueue import KeyLimits, explain_job
from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import Job
from sa_jobqueue.statements import pause, set_limit
from tests.support.browsing import Seen, Viewer
from tests.support.explaining import a_worker
from tests.support.factory import make_job, statuses

#: Jobs of which no page may say that there are none.
FILL = """
INSERT INTO sa_jobqueue.job (queue, task, priority, concurrency_key, run_at)
SELECT 'exports', CASE WHEN n > 70 THEN 'rare' ELSE 'common' END, mod(n, 3), CASE WHEN mod(n, 2) = 0 THEN 'k' || mod(n, 8) END, now() - n * interval '1 min'
  FROM generate_series(1, 80) AS n;
INSERT INTO sa_jobqueue.job (queue, task, concurrency_key, run_at)
SELECT 'exports', 'later', CASE WHEN n = 1 THEN 'k9' END, now() + n * interval '1 h' FROM generate_series(1, 2) AS n;
INSERT INTO sa_jobqueue.job (queue, task, status, finished_at) SELECT 'mail', 'done', 'completed', now() FROM generate_series(1, 50) AS n;
"""


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look goes not far."""
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.RANGE", 10)
    monkeypatch.setattr("sa_jobqueue.dashboard.filters.MOST", 5)
    monkeypatch.setattr("sa_jobqueue.dashboard.filters._OF_EACH_KEY", 3)


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


@pytest.fixture
def order(connection: Connection) -> list[int]:
    """The ids of the queued jobs of `exports`, oldest due first."""
    connection.exec_driver_sql(FILL)
    connection.commit()
    found = connection.execute(text("SELECT id FROM sa_jobqueue.job WHERE status = 'queued' ORDER BY run_at, id"))
    return [row.id for row in found]


def shown(page: Seen) -> list[int]:
    return [
        int((row["id"] or "").removeprefix("job-"))
        for row in page.all("tr")
        if (row.get("id") or "").startswith("job-")
    ]


def all_shown(viewer: Viewer, **query: str) -> tuple[list[int], int]:
    """The ids on this page and on all that follow, and how many pages these are."""
    page, found, pages = viewer.see("/jobs", **query), list[int](), 1
    while True:
        found += shown(page)
        following = [one["href"] or "" for one in page.all("a", rel="next")]
        if not following:
            return found, pages
        page, pages = viewer.see(following[0]), pages + 1


def test_queued_jobs_are_listed_oldest_due_first_however_old_they_are(engine: Engine, order: list[int]) -> None:
    """They have the lowest ids, and are in all three indexes of queued jobs."""
    viewer = Viewer(engine)
    page = viewer.see("/jobs", status="queued")
    assert shown(page) == order[:50]
    assert "queued 82" in page.text
    assert "completed 10+" in page.text
    assert all_shown(viewer, status="queued", queue="exports") == (order, 2)
    assert all_shown(viewer, status="scheduled")[0] == order[-2:]
    assert all_shown(viewer, status="due")[0] == order[:-2]


def test_a_filter_that_no_index_has_is_looked_for_in_steps_and_none_is_left_out(
    engine: Engine, order: list[int]
) -> None:
    """What was not looked at is said, and is not 0; what is done to all that match reaches all."""
    viewer = Viewer(engine)
    page = viewer.see("/jobs", status="queued", task="later")
    assert "None among these." in page.text
    assert "“More” continues after them." in page.text
    found, pages = all_shown(viewer, status="queued", task="later")
    assert found == order[-2:]
    assert pages > 3
    assert all_shown(viewer, status="queued", task="common", queue="exports")[0] == order[10:-2]
    viewer.do("cancel", status="queued", task="later")
    assert "Cancelled 80 jobs." in viewer.do("cancel", status="queued", queue="exports").text


def test_of_some_keys_and_some_queues_only_theirs_are_listed(
    engine: Engine, connection: Connection, order: list[int]
) -> None:
    """A filter by key leads to each key's own jobs, and a viewer of some queues sees no others."""
    of_key = connection.scalars(
        text("SELECT id FROM sa_jobqueue.job WHERE concurrency_key = 'k2' ORDER BY run_at, id")
    ).all()
    assert all_shown(Viewer(engine), status="queued", key="k2")[0] == of_key
    assert all_shown(Viewer(engine, Access(can={"retry"}, queues={"mail"})), status="queued")[0] == []
    assert (
        all_shown(Viewer(engine, Access(can={"retry"}, where=Job.concurrency_key == "k2")), status="queued")[0]
        == of_key
    )


def test_a_queue_with_more_keys_than_are_looked_at_is_said(
    engine: Engine, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at a single key is complete."""
    monkeypatch.setattr("sa_jobqueue.sql.chosen._TURNS", 3)
    viewer = Viewer(engine)
    assert "more keys than were searched" in viewer.see("/jobs", status="queued").text
    assert "more keys than were searched" not in viewer.see("/jobs", status="queued", key="k2").text


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_times_that_no_clock_shows_are_no_end_of_the_list(engine: Engine, connection: Connection, time: str) -> None:
    for _ in range(60):
        make_job(connection, run_at=text(f"'{time}'"))
    connection.commit()
    found, pages = all_shown(Viewer(engine), status="queued")
    assert (sorted(found), pages) == (sorted(statuses(connection)), 2)


def test_ids_that_are_missing_hide_no_jobs(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored sequence or a rolled-back bulk insert leaves a gap."""
    old = make_job(connection, "completed", id=7)
    make_job(connection, "completed", queue="other", id=900_000)
    connection.commit()
    viewer = Viewer(engine)
    for query in ({}, {"status": "completed"}):
        page = viewer.see("/jobs", **query)
        assert old in shown(page)
        assert "completed 2" in page.text


@pytest.mark.parametrize("place", ["yesterday", "x,1", "2030-01-01,x", ",1"])
def test_a_place_in_the_list_that_cannot_be_read_is_refused(engine: Engine, place: str) -> None:
    assert Viewer(engine).get("/jobs", status="queued", due=place).status_code in {200, 400}


def test_the_list_has_the_reason_of_each_job_in_one_query(
    engine: Engine, connection: Connection, order: list[int]
) -> None:
    """The same as the job's own page. A viewer of some jobs reads no numbers of others."""
    a_worker(engine, "exports")
    connection.execute(set_limit("exports", per_key=KeyLimits(running=1)))
    connection.execute(pause("exports", key="k4", reason="its owner asked"))
    running = connection.scalar(text("UPDATE sa_jobqueue.job SET status = 'running', claims = 1, claimed_at = now(), "
        "lease_expires_at = now() + interval '1 h' WHERE concurrency_key = 'k2' AND id = (SELECT min(id) FROM sa_jobqueue.job "
        "WHERE concurrency_key = 'k2') RETURNING id"))  # fmt: skip
    connection.commit()
    sent = list[str]()
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: sent.append(statement))
    page = Viewer(engine).see("/jobs", status="queued", queue="exports")
    assert len([one for one in sent if "LATERAL (WITH asked" in one]) == 1
    for id in shown(page):
        reason = explain_job(connection, id).reasons[0].said(lambda _: "")
        assert reason.replace("until ", "")[:40] in page.text.replace("until ", "")
    assert f"waits for limit exports/k2: 1 of 1 running (job {running})" in page.text
    assert "waits for pause exports/k4 to end: its owner asked" in page.text

    some = Viewer(engine, Access(can={"retry"}, where=Job.concurrency_key.is_(None))).see("/jobs", status="queued")
    assert "behind others of queue exports" in some.text
