"""Callbacks: the address that a handler made takes one answer, from anyone who has it. Everything else is refused."""

from __future__ import annotations

import html
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, NullPool, func, insert, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from sa_jobqueue import AsyncJobContext, Callbacks, Registry, enqueue, once, task
from sa_jobqueue.arguments.questions import as_asked
from sa_jobqueue.dashboard import callbacks, database
from sa_jobqueue.errors import ConfigurationError, OptionError, PayloadError
from sa_jobqueue.models import Signal, Wait
from sa_jobqueue.rules.callbacks import Ticket
from tests.support.browsing import Seen
from tests.support.databases import connect, driver_url
from tests.support.factory import make_job
from tests.support.waiting import wait_until
from tests.support.working import add_one, job_of, working

HOOKS = Callbacks(url="https://shop.test/hooks", keys=["a key that is long enough"], max_bytes=1_000)
FORM = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def registry() -> Registry:
    return Registry(callbacks=HOOKS)


@pytest.fixture
def client(engine: Engine, registry: Registry) -> TestClient:
    return client_of(engine, registry)


def client_of(engine: Any, registry: Registry) -> TestClient:
    app = Starlette(routes=[Mount("/hooks", callbacks(engine, registry=registry))])
    return TestClient(app, base_url="https://shop.test", follow_redirects=False)


def address(nonce: str = "n0", *, seconds: float = 60, hooks: Callbacks = HOOKS) -> str:
    return hooks.sign(Ticket("job:17:paid", int(time.time() + seconds), nonce))


def payloads(engine: Engine) -> list[Any]:
    with Session(engine) as session:
        return list(session.scalars(select(Signal.payload).order_by(Signal.id)))


class Approval(BaseModel):
    approved: bool


def test_an_order_is_approved_by_a_click(engine: Engine, url: str, registry: Registry) -> None:
    """Each run of the handler gets the same address. A GET shows the question and sends nothing. A click counts once."""
    seen: list[str] = []

    @task(registry=registry, name="ship")
    async def ship(ctx: AsyncJobContext) -> None:
        with pytest.raises(OptionError, match="to 30 days"):
            await ctx.callback_url("never", expires_in=timedelta(days=31))
        with pytest.raises(PayloadError, match="more than the 65,536"):
            await ctx.wait_signal("never", str, question="x" * 70_000)
        address = await ctx.callback_url("approve")
        seen.append(address)
        asked = {
            "question": "Ship order <7>?",
            "choices": {"Approve": {"approved": True}, "Reject": {"approved": False}},
        }
        approval = await ctx.wait_signal(address.signal, Approval, question=asked)
        seen.append(repr(approval))

    job = add_one(engine, enqueue(ship))
    client = client_of(create_async_engine(driver_url(url, "psycopg"), poolclass=NullPool), registry)
    with working(url, registry, queues={"default": 1}):
        wait_until(lambda: job_of(engine, job).status == "blocked")
        page = Seen(client.get(seen[0]).text)
        assert "Ship order <7>?" in page.words
        approve, reject = page.all("button")
        assert payloads(engine) == []
        answer = client.post(seen[0], data={"payload": approve["value"]}, headers=FORM)
        assert (answer.status_code, "was taken" in answer.text) == (200, True)
        wait_until(lambda: job_of(engine, job).is_finished)
    assert client.post(seen[0], data={"payload": reject["value"]}, headers=FORM).status_code == 409
    assert client.get(seen[0]).status_code == 409
    assert seen == [seen[0], seen[0], "Approval(approved=True)"]
    assert seen[0].startswith("https://shop.test/hooks/")


def test_json_and_forms_are_payloads(engine: Engine, client: TestClient) -> None:
    """If a form has a single field `payload`, it is JSON, as on our own page and from some senders of webhooks."""
    bodies = [
        (b'{"paid": 12.5}', JSON), (b"[1]", {"content-type": "application/cloudevents+json; charset=utf-8"}), (b"", {}),
        (b"a=1&b=2&b=3&c=", FORM), (b"payload=%7B%22a%22%3A+null%7D", FORM), (b"payload=1&more=2", FORM),
    ]  # fmt: skip
    for nonce, (body, headers) in enumerate(bodies):
        assert client.post(address(str(nonce)), content=body, headers=headers).status_code == 200, body
    assert payloads(engine) == [
        {"paid": 12.5}, [1], None, {"a": "1", "b": ["2", "3"], "c": ""}, {"a": None}, {"payload": "1", "more": "2"},
    ]  # fmt: skip


class Payment(BaseModel):
    amount: int
    paid: bool = True
    fee: float | None = None
    note: str = ""


def test_fields_of_a_form_become_what_the_question_asks_for(engine: Engine, client: TestClient) -> None:
    """Texts of a form become numbers and booleans where the type has them. A value that does not fit is refused."""
    with engine.begin() as connection:
        asked = {"step": "paid", "signal": "job:17:paid", "question": as_asked("Paid?", Payment)}
        connection.execute(insert(Wait).values(job_id=make_job(connection, "blocked"), **asked))
    for body, told in (("amount=x", "answer.amount must be an integer, not 'x'"), ("amount=7&paid=on", "paid must be")):
        answer = client.post(address(), content=body, headers=FORM)
        assert (answer.status_code, told in html.unescape(answer.text)) == (422, True), answer.text
    assert client.post(address(), content="amount=7&paid=false&fee=0.5&note=8&more=9", headers=FORM).status_code == 200
    assert payloads(engine) == [{"amount": 7, "paid": False, "fee": 0.5, "note": "8", "more": "9"}]


def test_what_cannot_be_taken_is_refused_and_uses_nothing_up(engine: Engine, client: TestClient) -> None:
    """A forged or expired address and an invalid payload get their statuses. The address still works afterwards."""
    other = Callbacks(url="https://shop.test/hooks", keys=["a key of somebody else"])
    refused: list[tuple[int, str, bytes, dict[str, str]]] = [
        (403, address(hooks=other), b"1", JSON), (403, "/hooks/x", b"1", JSON), (403, "/hooks/", b"1", JSON),
        (403, f"{address()}x", b"1", JSON), (410, address(seconds=-2), b"1", JSON), (413, address(), b'"' + b"x" * 1_000 + b'"', JSON),
        (415, address(), b"<paid/>", {"content-type": "text/xml"}), (400, address(), b"{", JSON), (400, address(), b"\xff", JSON),
        (400, address(), b"NaN", JSON), (400, address(), b'"\\u0000"', JSON), (400, address(), b"[" * 999, JSON),
        (400, address(), b"payload=x", FORM),
    ]  # fmt: skip
    for status, place, body, headers in refused:
        answer = client.post(place, content=body, headers=headers)
        assert (answer.status_code, bool(answer.text)) == (status, True), (place, body)
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert [client.get(place).status_code for place in (address(seconds=-2), "/hooks/x")] == [410, 403]
    assert client.put(address(), content=b"1").status_code == 405
    assert payloads(engine) == []
    assert client.post(address(), content=b"1", headers=JSON).status_code == 200


def test_of_two_answers_at_once_one_counts(engine: Engine, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two connections, the second answer waits for the first and finds the address used. If the first rolls back, the second counts."""
    monkeypatch.setattr(database, "_LOCK_PATIENCE", timedelta(seconds=20))
    start = Barrier(2)

    def answer(number: int) -> int:
        start.wait(30)
        return client.post(address(), content=str(number), headers=JSON).status_code

    with ThreadPoolExecutor() as threads:
        assert sorted(threads.map(answer, (1, 2))) == [200, 409]
        assert len(payloads(engine)) == 1
        with Session(engine) as session, connect(engine.url.render_as_string(hide_password=False)) as watching:
            assert once(session, "callback:n1")
            late = threads.submit(client.post, address("n1"), content="3", headers=JSON)
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            wait_until(lambda: watching.execute(waits).fetchone() == (1,))
            session.rollback()
        assert late.result(30).status_code == 200
    assert payloads(engine)[1:] == [3]


def test_a_registry_without_callbacks_is_told(engine: Engine) -> None:
    """The error comes when the application is mounted, not at the first answer."""
    with pytest.raises(ConfigurationError, match=r"registry\.callbacks = Callbacks"):
        callbacks(engine, registry=Registry())
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Signal)) == 0
