"""`sa-jobqueue doctor`: its exit codes, its JSON, and what it shows in a terminal and in a pipe."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta

import pytest
from sqlalchemy import Engine, delete, func, insert, make_url, update

from sa_jobqueue import Job, Registry
from sa_jobqueue.doctor import CHECKS
from sa_jobqueue.doctor.examine import ITEMS
from sa_jobqueue.models import AuditEntry, WorkerRow
from tests.support import ills, pooler
from tests.support.cli import as_json, invoke, refused
from tests.support.databases import connect
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import working


@pytest.fixture
def shared_database_url(shared_database_url: str) -> str:
    """The URL past a pooler, behind which `doctor` hears nothing (see test_pooler.py)."""
    return pooler.direct(shared_database_url)


@pytest.fixture
def database_url(database_url: str) -> str:
    """The same for this test alone: past a pooler, what is set on a database is seen at once."""
    return pooler.direct(database_url)


def test_doctor_finds_an_idle_queue_well(url: str) -> None:
    """It asks each question once, in order."""
    found = as_json("doctor", url=url)
    assert found["ok"] is True
    assert [one["name"] for one in found["checks"]] == [check.name for check in CHECKS]
    assert all(set(one) == {"name", "level", "detail", "advice", "numbers"} for one in found["checks"])


def problems(*arguments: str, url: str) -> dict[str, str]:
    result = invoke("doctor", *arguments, "--json", url=url)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert found["ok"] is False
    return {one["name"]: one["detail"] for one in found["checks"] if one["level"] == "problem"}


def test_doctor_tells_who_has_acknowledged_a_finding(engine: Engine, url: str) -> None:
    """The exit code does not change. If the finding got worse, the earlier finding is shown."""
    with engine.begin() as connection:
        make_job(connection, queue="mail")
    detail = problems(url=url)["queues"]
    target = {"check": ["queues"], "for": ["8h"], "level": ["problem"], "detail": [detail]}
    with engine.begin() as connection:
        connection.execute(insert(AuditEntry).values(who="ada\x1b[31m", action="acknowledge", count=1, target=target))
    assert re.fullmatch(
        re.escape(detail) + r" \(acknowledged by ada\x1b\[31m until \d{4}-\d\d-\d\d \d\d:\d\d UTC\)",
        problems(url=url)["queues"],
    )
    shown = invoke("doctor", url=url).stdout
    assert "(acknowledged by ada" in shown
    assert "\x1b" not in shown
    with engine.begin() as connection:
        make_job(connection, queue="sync")
    assert problems(url=url)["queues"].endswith(f", but it got worse: it was “{detail}”)")


def test_due_jobs_without_a_live_worker_are_a_problem(engine: Engine, url: str) -> None:
    """A stale worker serves no queue, and a scheduled job needs no worker yet."""
    worker = {"host": "web-1", "pid": 7, "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        for queue, run_at in (("mail", 0), ("images", 0), ("later", 5)):
            make_job(connection, queue=queue, run_at=timedelta(minutes=run_at))
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), queues=["mail"], **worker))
        stale = func.now() - timedelta(minutes=5)
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), queues=["images"], seen_at=stale, **worker))
    assert problems(url=url) == {"queues": "due jobs that no live worker serves: images (1)"}
    plain = invoke("doctor", url=url)
    assert plain.exit_code == 1
    assert re.search(
        r"\nnotice +workers +1 live \(web-1:7\), 0 listening, 1 stale; not seen for a minute", plain.stdout
    )
    *_, problem, advice, summary = plain.stdout.splitlines()
    assert problem.split(maxsplit=2) == ["problem", "queues", "due jobs that no live worker serves: images (1)"]
    assert advice.strip() == "→ start a worker with `sa-jobqueue work --queue NAME`"
    assert re.fullmatch(r"1 problem, (\d notices?, )?\d+ ok", summary)


def test_it_is_said_how_many_live_workers_listen(database_url: str) -> None:
    """The listener's connection names its worker, before what the URL says; it counts for the workers of this database."""
    url = make_url(database_url).update_query_dict({"application_name": "shop"}).render_as_string(hide_password=False)
    with working(url, Registry(), listen=False):
        (deaf,) = wait_until(lambda: as_json("workers", url=url))
        assert deaf["listening"] is False
        with working(url, Registry()) as worker:
            wait_until(lambda: any(one["listening"] for one in as_json("workers", url=url)))
            assert {one["id"]: one["listening"] for one in as_json("workers", url=url)} == {
                deaf["id"]: False,
                str(worker.id): True,
            }
            (said,) = (one for one in as_json("doctor", url=url)["checks"] if one["name"] == "workers")
            place = f"{deaf['host']}:{deaf['pid']}"
            assert said["level"] == "ok"
            assert said["detail"] == f"2 live ({place}, {place}), 1 listening"
            assert said["numbers"] == {"live": 2, "stale": 0, "listening": 1}
            with connect(database_url) as connection:
                names = connection.execute("SELECT application_name FROM pg_stat_activity").fetchall()
            assert (f"sa-jobqueue {worker.id} shop",) in names


def test_expired_leases_and_long_waits_are_problems(engine: Engine, url: str) -> None:
    """A wait is one only if --max-wait says how long is too long."""
    with engine.begin() as connection:
        make_job(connection, "running", lease_expires_at=timedelta(seconds=-1))
        make_job(connection, run_at=timedelta(hours=-2))
        connection.execute(
            insert(WorkerRow).values(id=uuid.uuid4(), queues=["default"], host="a", pid=1, concurrency=1, version="1")
        )
    assert problems(url=url).keys() == {"leases"}
    assert problems("--max-wait", "1h", url=url)["waiting"] == "1 job due, the oldest for 2h; more than 1h is too long"


def test_unique_keys_that_no_job_needs_any_more_are_named(engine: Engine, url: str) -> None:
    """What SQL by hand leaves behind. It names neither a key that is kept for some time after a job's end, nor that of a live job."""
    rules = {f"k{n}": {"key": f"k{n}"} for n in range(6)} | {"kept": {"key": "kept", "scope": "window", "period": 60}}
    with engine.begin() as connection:
        ids = {
            key: connection.scalar(insert(Job).values(task="a", uniqueness=rule).returning(Job.id))
            for key, rule in rules.items()
        }
    assert problems(url=url).keys() == {"queues"}
    with engine.begin() as connection:
        connection.execute(delete(Job).where(Job.id.in_([ids["k1"], ids["k3"], ids["kept"]])))
        connection.execute(update(Job.__table__).where(Job.id.in_([ids["k2"], ids["k5"]])).values(status="failed"))
    assert problems(url=url)["unique"] == (
        "4 unique keys of jobs that have ended or are gone, as after a DELETE by hand: "
        f"'k1' of job {ids['k1']}, 'k2' of job {ids['k2']}, 'k3' of job {ids['k3']}, …"
    )


def test_a_missing_schema_is_a_problem_with_its_remedy(empty_database_url: str) -> None:
    """What needs the tables is not asked."""
    assert problems("--schema", "my jobs", url=empty_database_url) == {
        "schema": f"the job queue's schema 'my jobs' of database {make_url(empty_database_url).database!r} is missing; "
        "version 1 is needed"
    }
    remedy = "run `sa-jobqueue migrate --schema 'my jobs'`"
    assert remedy in invoke("doctor", "--schema", "my jobs", url=empty_database_url).stdout
    assert remedy in refused("list", "--schema", "my jobs", url=empty_database_url)


def test_doctor_says_in_json_that_the_database_is_away() -> None:
    """Exit code 2, and no password."""
    result = invoke("doctor", "--json", url="postgresql://me:secret@127.0.0.1:1/nowhere")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["ok"] is False
    assert json.loads(result.stdout)["checks"][0]["level"] == "problem"
    assert "secret" not in result.output


def test_a_notice_does_not_need_a_person(database_url: str) -> None:
    """Exit code 0, and the notice is shown with what to do."""
    with ills.invalid_index(database_url):
        assert invoke("doctor", url=database_url).exit_code == 1
    with connect(database_url) as connection:
        connection.execute("DELETE FROM sa_jobqueue.job")
        connection.execute("INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES (2, 1)")
    result = invoke("doctor", url=database_url)
    assert result.exit_code == 0
    assert re.search(r"\nnotice +schema .*\n +→ install the newer release here as well\n", result.stdout)


def test_the_checklist_shows_each_item_with_its_state(engine: Engine, url: str) -> None:
    """What no command can know is yours to decide; an item with a problem says which check found it, and what to do."""
    with engine.begin() as connection:
        make_job(connection, queue="images")
    result = invoke("doctor", "--checklist", url=url)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    titles = tuple(item.title for item in ITEMS)
    assert sum(line.endswith(titles) for line in lines) == len(ITEMS)
    assert any(re.fullmatch(r"yours to decide +Handlers may run twice", line) for line in lines)
    place = next(
        n for n, line in enumerate(lines) if re.fullmatch(r"problem +Every queue and every task has workers", line)
    )
    found_by = [line.strip() for line in lines[place + 1 : place + 3]]
    assert found_by[0].startswith("→ workers: 0 live; no worker is alive. To do: start one")
    assert found_by[1].startswith("→ queues: due jobs that no live worker serves: images (1). To do: start")
    found = json.loads(invoke("doctor", "--checklist", "--json", url=url).stdout)
    assert found["ok"] is False
    assert [one["item"] for one in found["checklist"]] == [item.title for item in ITEMS]
    states = {one["item"]: one["state"] for one in found["checklist"]}
    assert states["Jobs are claimed in a predictable order"] == "ok"
    assert states["Every queue and every task has workers"] == "problem"


def test_each_item_of_the_checklist_names_checks_that_there_are() -> None:
    """Otherwise it would be yours to decide for ever."""
    assert {name for item in ITEMS for name in item.checks} <= {check.name for check in CHECKS}
