"""The slots of a running worker process, set by an operator: `sa-jobqueue workers set`."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from sa_jobqueue import Job, JobStatus, enqueue
from sa_jobqueue.cli.stats import _answer
from sa_jobqueue.models import AuditEntry, WorkerRow
from sa_jobqueue.statements import set_slots
from tests.acceptance import app
from tests.acceptance.conftest import Shop
from tests.support.cli import invoke
from tests.support.waiting import wait_until


def row(shop: Shop) -> Any:
    """The row of the only worker."""
    ((id, host, pid, slots, wanted),) = wait_until(
        lambda: shop.execute(select(WorkerRow.id, WorkerRow.host, WorkerRow.pid, WorkerRow.slots, WorkerRow.wanted))
    )
    return id, f"{host}:{pid}", slots, wanted


def set_(shop: Shop, *queues: str) -> dict[str, Any]:
    """Set slots by the command, and wait for the worker's answer."""
    name = row(shop)[1]
    result = invoke("workers", "set", name, *(f"--queue={queue}" for queue in queues), "--json", url=shop.url)
    answer: dict[str, Any] = json.loads(result.stdout)
    assert result.stderr.count("database:") == 1
    assert result.exit_code == (0 if answer["answer"] == "set" else 1)
    return answer


def begun(shop: Shop) -> list[str]:
    return sorted(path.name.removeprefix("started-") for path in shop.folder.glob("started-*"))


def test_raised_slots_run_more_jobs_at_once_and_lowered_slots_fewer(shop: Shop) -> None:
    """Three handlers with sessions run at once after a raise from 1 to 3. Lowered to 1, the three go on, and no other begins before
    all of them have ended.
    """
    first = shop.add(*(enqueue(app.held, name) for name in "abc"))
    with shop.work("--queue=default=1", "--lease=3"):
        shop.wait_said("started-a")
        assert begun(shop) == ["a"]
        answer = set_(shop, "default=3")
        assert (answer["answer"], answer["slots"], answer["wanted"]) == ("set", {"default": 3}, None)
        wait_until(lambda: begun(shop) == ["a", "b", "c"])

        later = shop.add(*(enqueue(app.held_async, name) for name in "de"))
        assert set_(shop, "default=1")["slots"] == {"default": 1}
        shop.go("a")
        shop.go("b")
        shop.wait_for(*first[:2])
        assert begun(shop) == ["a", "b", "c"]
        shop.go("c")
        shop.wait_said("started-d")
        assert begun(shop) == ["a", "b", "c", "d"]
        shop.go("d")
        shop.go("e")
        shop.wait_for(*first, *later)
    assert {job.attempt for job in shop.jobs()} == {1}


def test_a_queue_is_added_and_removed(shop: Shop) -> None:
    """A job of an added queue runs; the worker is woken for a job of that queue. A job of a removed queue waits, while another queue's run."""
    with shop.work("--queue=default=2", "--lease=3"):
        early = shop.add(enqueue(app.nothing.options(queue="mail")))
        assert set_(shop, "mail=2")["slots"] == {"default": 2, "mail": 2}
        shop.wait_for(*early)
        woken = shop.add(enqueue(app.nothing.options(queue="mail")))
        shop.wait_for(*woken)

        assert set_(shop, "mail=0")["slots"] == {"default": 2}
        (left,) = shop.add(enqueue(app.nothing.options(queue="mail")))
        shop.wait_for(*shop.add(*(enqueue(app.nothing) for _ in range(50))))
        assert (shop.job(left).status, shop.job(left).claims) == (JobStatus.QUEUED, 0)

        assert set_(shop, "mail=1")["answer"] == "set"
        shop.wait_for(left)


def test_a_process_that_begins_again_has_its_own_options(shop: Shop) -> None:
    with shop.work("--queue=default=1", "--lease=3") as worker:
        before = row(shop)[0]
        assert set_(shop, "default=2", "mail=3")["slots"] == {"default": 2, "mail": 3}
        worker.kill()
        shop.execute(WorkerRow.__table__.delete().where(WorkerRow.id == before))
    with shop.work("--queue=default=1", "--lease=3"):
        id, _, slots, wanted = row(shop)
        assert (slots, wanted) == ({"default": 1}, None)
        assert id != before


def test_slots_that_a_worker_cannot_have_are_refused_and_listed_with_the_reason(shop: Shop) -> None:
    """The worker keeps its slots, and a later request replaces the refused request."""
    with shop.work("--queue=default=1", "--lease=3"):
        refused = set_(shop, "default=9000")
        assert (refused["answer"], refused["slots"]) == ("refused", {"default": 1})
        assert "9000 slots need up to 9003 connections" in refused["wanted"]["refused"]
        shown = invoke("workers", url=shop.url)
        assert "default=9000 refused: 9000 slots need up to 9003 connections" in shown.stderr
        assert "no queue would be left" in set_(shop, "default=0")["wanted"]["refused"]
        assert "'*'" in set_(shop, "*=5")["wanted"]["refused"]
        assert set_(shop, "default=2")["wanted"] is None


def test_two_wishes_before_an_answer_are_both_followed(shop: Shop) -> None:
    with shop.work("--queue=default=1", "--lease=3"):
        id = row(shop)[0]
        with shop.engine.begin() as connection:
            for queue in ("mail", "sync"):
                asked = connection.scalars(set_slots(WorkerRow.id == id, slots={queue: 2})).all()
                assert asked == [id]
        wait_until(lambda: row(shop)[2:] == ({"default": 1, "mail": 2, "sync": 2}, None))


@pytest.mark.parametrize(
    ("slots", "wanted", "answer"),
    [
        ({"mail": 1}, {"slots": {"mail": 2, "sync": 3}}, "asked"),
        ({"mail": 1}, {"slots": {"mail": 3}}, "replaced"),
        ({"mail": 2}, None, "set"),
        ({"mail": 3}, None, "replaced"),
        ({"mail": 1}, {"slots": {"mail": 2}, "refused": "too many"}, "refused"),
    ],
)
def test_the_command_tells_when_a_later_request_has_replaced_its_slots(slots: Any, wanted: Any, answer: str) -> None:
    """`workers set --queue mail=2` does not wait for slots that the worker will not have."""
    assert _answer(WorkerRow(slots=slots, wanted=wanted), {"mail": 2}) == answer


def test_a_worker_is_named_by_its_place_or_its_id(shop: Shop) -> None:
    """An unknown or ambiguous name is refused with a list of the workers. The audit has accepted requests."""
    common = {"host": "web-1", "pid": 1, "queues": ["mail"], "concurrency": 4, "version": "1", "slots": {"mail": 4}}
    alone = invoke("workers", "set", "web-1:1", "--queue=mail=1", url=shop.url)
    assert "there is no worker 'web-1:1'; no worker runs\n" in alone.stderr
    for number in (1, 2):
        shop.execute(WorkerRow.__table__.insert().values(id=UUID(int=number), **common))
    for name in ("web-1:1", "web-2:7"):
        result = invoke("workers", "set", name, "--queue=mail=1", url=shop.url)
        assert result.exit_code == 2
        assert str(UUID(int=1)) in result.stderr
        assert str(UUID(int=2)) in result.stderr
        assert name in result.stderr
    given = ("workers", "set", str(UUID(int=2)), "--queue=mail=1", "--no-wait")
    assert "asked" in invoke(*given, url=shop.url).stdout
    assert shop.execute(select(WorkerRow.wanted).order_by(WorkerRow.id)) == [(None,), ({"slots": {"mail": 1}},)]
    target = {"worker": [str(UUID(int=2))], "queue": ["mail"], "slots": ["1"]}
    assert shop.execute(select(AuditEntry.action, AuditEntry.target)) == [("set_slots", target)]
    assert "expected NAME=SLOTS" in invoke(*given[:3], "--queue=mail", url=shop.url).stderr
    assert shop.jobs(Job.queue == "mail") == []
