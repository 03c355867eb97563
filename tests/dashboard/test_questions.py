"""Questions for people: jobs that wait for an answer are listed and shown, and a button sends the signal."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, delete, func, insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Signal, explain_job
from sa_jobqueue.arguments.questions import as_asked
from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Step, Wait
from tests.support.browsing import Viewer
from tests.support.cli import invoke, notes, refused
from tests.support.factory import make_job


class Approval(BaseModel):
    by: str


def ask(
    engine: Engine, question: object, hint: Any = bool, *, hours: int = 1, signal: str | None = None, **columns: Any
) -> int:
    """A job that has waited for an answer for some hours."""
    with engine.begin() as connection:
        id = make_job(connection, "blocked", **columns)
        stored = None if question is None else as_asked(question, hint)
        since = func.now() - timedelta(hours=hours)
        name = signal or f"order:{id}"
        connection.execute(
            insert(Wait).values(job_id=id, step=f"signal:{name}", signal=name, question=stored, since=since)
        )
    return id


def signals(engine: Engine) -> list[tuple[str, Any]]:
    with Session(engine) as session:
        return [(row.name, row.payload) for row in session.scalars(select(Signal).order_by(Signal.id))]


def test_the_oldest_question_is_first_and_a_click_answers_it(engine: Engine) -> None:
    """A later click finds the answer there. The audit has the user and the button; `why` prints the question."""
    new, old = ask(engine, "Ship the new?"), ask(engine, "Ship the old?", hours=50)
    machine = ask(engine, None)
    viewer = Viewer(engine, Access(can={"answer"}).named("ann"))
    page = viewer.see("/questions")
    assert page.text.index("Ship the old?") < page.text.index("Ship the new?")
    assert f"/jobs/{machine}" not in page.links
    assert f"/jobs/{machine}" in viewer.see("/questions", all="yes").links
    assert [one["value"] for one in page.all("button", name="choice")] == ["Yes", "No"] * 2

    done = viewer.do("answer", id=old, step=f"signal:order:{old}", choice="No", next="/questions")
    assert f"Sent the signal order:{old}." in done.text
    assert (f"/jobs/{old}" in done.links, f"/jobs/{new}" in done.links) == (False, True)
    again = viewer.do("answer", id=old, step=f"signal:order:{old}", choice="Yes", next="/questions")
    assert "Nothing was changed" in again.text
    viewer.do("answer", id=new, step="signal:another", choice="Yes")
    assert signals(engine) == [(f"order:{old}", False)]
    with Session(engine) as session:
        entry = session.scalars(select(AuditEntry)).one()
        assert (entry.who, entry.action, entry.target["choice"]) == ("ann", "answer", ["No"])
        assert f"waits for signal order:{old} since" in str(explain_job(session, old))
        assert str(explain_job(session, old)).endswith(": Ship the old?")


def test_what_was_typed_is_checked_before_it_is_sent(engine: Engine) -> None:
    """It is checked by the handler's type. A job without a question takes any JSON."""
    id, machine = ask(engine, "Who may pass?", Approval), ask(engine, None)
    viewer = Viewer(engine)
    page = viewer.see(f"/jobs/{id}")
    assert "Who may pass?" in page.text
    assert '{ "by": "" }' in page.text
    for payload, told in (("{", "JSON"), ('{"by": 7}', "answer.by must be a string, not 7"), ("", "JSON")):
        answer = viewer.send("answer", {"id": id, "step": f"signal:order:{id}", "payload": payload})
        assert (answer.status_code, told in answer.text) == (400, True), payload
    assert viewer.send("answer", {"id": id, "step": f"signal:order:{id}", "choice": "Yes"}).status_code == 400
    viewer.do("answer", id=id, step=f"signal:order:{id}", payload='{"by": "ann"}')
    viewer.do("answer", id=machine, step=f"signal:order:{machine}", payload="[1, null]")
    assert signals(engine) == [(f"order:{id}", {"by": "ann"}), (f"order:{machine}", [1, None])]


def test_the_command_refuses_what_is_no_answer(engine: Engine, url: str) -> None:
    """It checks as the dashboard does, and says whether a job goes on."""
    id = ask(engine, "Ship?")
    assert "answer must be true or false, not 7" in refused("signal", f"order:{id}", "7", url=url)
    sent = [notes(invoke("signal", f"order:{id}", "true", url=url))]
    assert signals(engine) == [(f"order:{id}", True)]
    ask(engine, None, signal=f"order:{id}")
    sent += [
        notes(invoke("signal", *arguments, url=url))
        for arguments in ([f"order:{id}", "true"], ["new"], ["new", "--expires-in", "2h"])
    ]
    assert sent == [
        "sent; 1 job that waited for it goes on\n", "sent; 1 of 2 jobs that waited for it goes on\n",
        "kept for 30d: no job waits for it now, so the payload was not checked\n",
        "kept for 2h: no job waits for it now, so the payload was not checked\n",
    ]  # fmt: skip


def test_who_may_not_answer_gets_no_form(engine: Engine) -> None:
    """A viewer of other queues can neither see the question nor answer it."""
    id = ask(engine, "Ship?", queue="secret")
    operator = Viewer(engine, Access.OPERATE)
    assert "Ship?" in operator.see(f"/jobs/{id}").text
    assert "/act/answer" not in operator.get(f"/jobs/{id}").text + operator.get("/questions").text
    tenant = Viewer(engine, Access(can={"answer"}, queues={"mail"}))
    assert "Ship?" not in tenant.see("/questions").text
    assert tenant.send("answer", {"id": id, "step": f"signal:order:{id}", "choice": "Yes"}).status_code == 404
    assert signals(engine) == []


def test_the_signal_of_an_older_question_is_not_sent_by_the_button_of_a_younger(engine: Engine) -> None:
    """The signal would answer the older question, whose job the viewer may not even see."""
    other = ask(engine, "Refund 7?", signal="refund", hours=5, queue="secret")
    mine = ask(engine, "Refund 8?", signal="refund", queue="mail")
    tenant = Viewer(engine, Access(can={"answer"}, queues={"mail"}))
    done = tenant.do("answer", id=mine, step="signal:refund", choice="Yes", next=f"/jobs/{mine}")
    assert "another job has waited longer for the signal" in done.text
    assert signals(engine) == []
    Viewer(engine).do("answer", id=other, step="signal:refund", choice="No")
    assert signals(engine) == [("refund", False)]


def test_the_job_page_has_both_times_of_a_wait(engine: Engine) -> None:
    """They are in the sentence and in the list. An attempt with steps from before its last claim is shown as one that went on."""
    id = ask(engine, "Ship?", claims=2, claimed_at=timedelta(0), created_at=timedelta(hours=-2))
    with engine.begin() as connection:
        connection.execute(update(Wait).values(until=func.now() + timedelta(hours=1)))
        values = {"job_id": id, "claim_token": 1, "revision": 1, "kind": "step", "name": "book"}
        connection.execute(insert(Step).values(ended_at=func.now() - timedelta(minutes=90), **values))
    said = Viewer(engine).see(f"/jobs/{id}").text
    time = r"[-0-9]{10} [:0-9]{8}\+00:00"
    assert re.search(rf"since {time} \([^()]* ago\) ?, at most until {time} \(in [^()]*\) ?: Ship\?", said)
    assert re.search(rf"step recorded book .* began to wait for signal order:{id} .* attempt 1 went on", said)


def test_the_timeline_has_the_beginning_of_a_sleep(engine: Engine) -> None:
    """As it has the beginning of a wait for a signal."""
    id = ask(engine, "Ship?")
    with engine.begin() as connection:
        connection.execute(
            update(Wait).values(signal=None, question=None, due_at=func.now() + timedelta(hours=1), step="sleep")
        )
    assert re.search(r"began to wait in step sleep", Viewer(engine).see(f"/jobs/{id}").text)


def test_suspended_jobs_are_among_the_blocked(engine: Engine) -> None:
    """Each suspended job is in the tab once, and counts in its number, whatever the job waits for, with another filter and without."""
    limited, machine, held = ask(engine, "Ship?"), ask(engine, None), ask(engine, None)
    with engine.begin() as connection:
        later = func.now() + timedelta(hours=1)
        connection.execute(update(Wait).where(Wait.job_id == limited).values(until=later, due_at=later))
        connection.execute(update(Wait).where(Wait.job_id == held).values(signal=None))
        make_job(connection, "blocked", blocked_by=1)
    for more in ({}, {"queue": "default"}):
        page = Viewer(engine).see("/jobs", status="blocked", **more)
        assert {f"/jobs/{id}" for id in (limited, machine, held)} <= set(page.links)
        assert "blocked 4" in page.text


def test_spaces_around_names_and_labels_belong_to_them(engine: Engine) -> None:
    """They arrive as the form of the page sends them."""
    id = ask(engine, {"question": "Ship?", "choices": {" Yes ": True, "No": False}}, signal="go ")
    viewer = Viewer(engine)
    (step,) = viewer.see(f"/jobs/{id}").all("input", name="step")
    viewer.do("answer", id=id, step=step["value"], exact="yes", choice=" Yes ")
    assert signals(engine) == [("go ", True)]


@pytest.mark.parametrize("change", ["it goes on", "it was cancelled"])
def test_a_job_that_waits_no_longer_is_not_listed(engine: Engine, change: str) -> None:
    """Its row in `wait` may exist for a little longer."""
    id = ask(engine, "Ship?")
    with engine.begin() as connection:
        if change == "it goes on":
            connection.execute(update(Wait).values(resumed_at=func.now()))
        else:
            connection.execute(delete(Job))
    assert f"/jobs/{id}" not in Viewer(engine).see("/questions").links
