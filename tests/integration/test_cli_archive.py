"""The archive from a shell: `list --archived`, `show`, `prune`, and what the doctor says of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Engine, func, insert, text

from sa_jobqueue.models import LogPart, Progress
from sa_jobqueue.sql.store import default_store
from tests.support.cli import as_json, invoke, output
from tests.support.factory import make_job
from tests.support.ills import look

OVER = timedelta(seconds=-1)
ERROR = {"at": "2026-01-02T03:04:05+00:00", "attempt": 1, "type": "ValueError", "message": "bad image", "traceback": ""}

Archive = Callable[..., int]


@pytest.fixture(autouse=True)
def own(database_url: str) -> str:
    """A database of the test's own: its archive has no month yet."""
    return database_url


@pytest.fixture
def archive(engine: Engine) -> Archive:
    """Makes a job of the task `kept`, and moves it."""

    def make(status: str = "completed", **columns: object) -> int:
        with engine.begin() as connection:
            default_store.declare_archived(connection, ["kept"], [])
            default_store.make_months_ahead(connection)
            id = make_job(connection, status, **{"task": "kept", "purge_at": OVER, "claim_token": 9, **columns})
            now = func.now()
            connection.execute(
                insert(Progress).values(
                    job_id=id, claim_token=9, fraction=0.5, message="half", written_at=now, claims=1
                )
            )
            connection.execute(
                insert(LogPart).values(
                    job_id=id, claim_token=9, part=0, written_at=now, attempt=1, lines=[[1.0, "INFO", "it began"]]
                )
            )
            assert default_store.prune(connection, archive=True).jobs == 1
        return id

    return make


def test_archived_jobs_are_listed_by_the_same_filters(engine: Engine, url: str, archive: Archive) -> None:
    """And are not among the others."""
    first = archive("failed", errors=[ERROR], meta={"tags": ["vip"]}, subject_type="Order", subject_id="7")
    second = archive(created_at=timedelta(days=-3), queue="mail")
    with engine.begin() as connection:
        there = make_job(connection, "completed", task="kept")

    def listed(*filters: str) -> list[int]:
        return [job["id"] for job in as_json("list", *filters, url=url)]

    assert listed() == [there]
    assert listed("--archived") == [second, first]
    for given in (
        ("--status", "failed"), ("--tag", "vip"), ("--subject", "Order:7"), ("--subject", "Order"), ("--error", "ValueError"),
        ("--newer-than", "1h"), ("--queue", "default"),
    ):  # fmt: skip
        assert listed("--archived", *given) == [first], given
    for none in ("queued", "due", "scheduled", "retrying", "running", "live"):
        assert listed("--archived", "--status", none) == []
    assert listed("--archived", "--status", "finished", "--limit", "1") == [second]
    (line, *_) = output("list", "--archived", "--queue", "mail", url=url).splitlines()[1:]
    assert line.split()[:4] == [str(second), "completed", "mail", "kept"]


def test_show_finds_a_job_in_the_archive_and_says_so(url: str, archive: Archive) -> None:
    """With all that is kept of it."""
    id = archive("failed", errors=[ERROR], args={"n": 1}, result={"a": 2})
    said = output("show", str(id), url=url)
    assert said.splitlines()[0] == f"job {id}  kept  failed  (in the archive)"
    for part in ("archived      ", "progress      50% half", '"n": 1', '"a": 2', "ValueError: bad image", "it began"):
        assert part in said
    found = as_json("show", str(id), url=url)
    assert (found["id"], found["status"], found["reading"], found["progress"]) == (id, "failed", "failed", 0.5)
    assert found["archived_at"] is not None
    assert found["logs"] == [[1.0, "INFO", "it began"]]
    assert found["waits_for"] == []
    assert "it began" in output("show", str(id), "--logs", url=url)
    (line,) = as_json("show", str(id), "--logs", url=url)
    assert (line["attempt"], line["level"], line["message"]) == (1, "INFO", "it began")


def test_of_a_number_that_is_there_twice_the_last_job_is_shown(engine: Engine, url: str, archive: Archive) -> None:
    """As after a restore to a time before: numbers are given again."""
    id = archive()
    with engine.begin() as connection:
        connection.execute(text("SELECT setval('sa_jobqueue.job_id_seq', :id, false)"), {"id": id})
    assert archive("failed", errors=[ERROR]) == id
    assert as_json("show", str(id), url=url)["status"] == "failed"
    assert as_json("why", str(id), url=url)["status"] == "failed"


def test_a_job_that_is_nowhere_is_said(engine: Engine, url: str) -> None:
    """As before; and of one that is not archived nothing is said of the archive."""
    result = invoke("show", "4711", url=url)
    assert result.exit_code == 1
    assert "there is no job 4711" in result.stderr
    with engine.begin() as connection:
        id = make_job(connection, "completed")
    assert "archive" not in output("show", str(id), url=url)
    assert as_json("show", str(id), url=url)["archived_at"] is None


def test_what_is_in_the_archive_cannot_be_retried_and_that_is_said(url: str, archive: Archive) -> None:
    id = archive("failed", errors=[ERROR])
    ended = invoke("retry", str(id), str(id + 1_000), url=url)
    assert ended.exit_code == 1
    assert f"not touched: {id} (failed, in the archive), {id + 1_000} (no such job)" in ended.output


def test_prune_deletes_what_it_is_told_and_leaves_the_archive(engine: Engine, url: str, archive: Archive) -> None:
    """`--expired` leaves what the workers will move."""
    kept = archive()
    with engine.begin() as connection:
        make_job(connection, "completed", task="kept", purge_at=OVER)
        make_job(connection, "completed", task="plain", purge_at=OVER)
    output("prune", "--expired", url=url)
    assert [job["task"] for job in as_json("list", url=url)] == ["kept"]
    output("prune", "--task", "kept", url=url)
    assert as_json("list", url=url) == []
    assert [job["id"] for job in as_json("list", "--archived", url=url)] == [kept]


def test_the_doctor_says_how_large_the_archive_is_and_what_is_missing(
    engine: Engine, url: str, archive: Archive
) -> None:
    """This month's table is a problem, the next one's a notice."""
    assert look(url)["archive"].detail == "no task's jobs are archived"
    archive()
    well = look(url)["archive"]
    assert (well.level, well.numbers["tasks"], well.numbers["months"]) == ("ok", 1, 2)
    assert "jobs of 1 task name are archived; 2 months from " in well.detail
    assert well.numbers["bytes"] > 0
    months = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'sa_jobqueue.archived_job'::regclass ORDER BY 1"
    with engine.begin() as connection:
        this, following = connection.scalars(text(months)).all()
        connection.execute(text(f"DROP TABLE {following}"))
    assert look(url)["archive"].level == "notice"
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {this}"))
    ill = look(url)["archive"]
    assert ill.level == "problem"
    assert "cannot be moved" in ill.detail
    assert "workers make it" in ill.advice
