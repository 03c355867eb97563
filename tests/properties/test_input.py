"""Anything at all as input: it is refused in Python, with an error of ours, or goes into the database and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, Text, cast, select
from sqlalchemy.orm import Session

from sa_jobqueue import Cancel, Discard, Job, Registry, TaskName, enqueue, task
from sa_jobqueue.errors import OptionError, PayloadError
from sa_jobqueue.rules.failures import MAX_MESSAGE, MAX_TRACEBACK, describe
from sa_jobqueue.rules.lifecycle import Claim, Rules, decide
from sa_jobqueue.rules.outcomes import Completed, Failed, Outcome, Rescued, Retry
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import discard_jobs, insert_jobs
from tests.support.factory import make_job, row
from tests.support.nightly import is_nightly

LOOK = settings(
    max_examples=2_000 if is_nightly() else 20, deadline=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip

#: Half of the time nothing but what gives trouble: NUL, lone surrogates, bidi controls, four bytes, noncharacters, quotes.
TROUBLE = "\x00\ud800\udfff\u202e\u2066\ufeff\U0001f600\U0010ffff\ufffe\x1b\r\n\t\x7f\x85\u2028'\"\\%:{}$-;,a"
texts = st.text(max_size=20) | st.text(TROUBLE, max_size=12) | st.text("x😀", min_size=195, max_size=205)
numbers = (
    st.integers() | st.integers(4_295, 4_305).map(lambda digits: 10**digits) | st.floats()
    | st.sampled_from([2**63, -(2**63) - 1, 1e308, 5e-324, -0.0])
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | numbers, inner, max_size=3),
    max_leaves=8,
)
zones = st.timezones() | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
moments = st.datetimes(timezones=st.none() | zones) | st.sampled_from(
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ]
)
anything = values | moments | st.timedeltas() | st.just(object())

registry = Registry()


@task(registry=registry, name="takes")
def takes(value: Any = None, *more: Any, **named: Any) -> Any:
    return value, more, named


class Odd(Exception):
    """Its text is whatever it was given."""

    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return]


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


@contextmanager
def undone(connection: Connection) -> Iterator[None]:
    """A transaction that is rolled back; an error of the database's in it fails the test."""
    with connection.begin() as transaction:
        yield
        transaction.rollback()


@LOOK
@given(value=anything, more=st.lists(anything, max_size=2), named=st.dictionaries(texts, anything, max_size=2))
@example(value=10**4_300, more=[], named={})
@example(value={"a": 10**4_299}, more=[], named={"\ud800": 1})
def test_arguments_are_refused_or_come_back(
    connection: Connection, value: Any, more: list[Any], named: dict[str, Any]
) -> None:
    """As the ORM's row and as one of a bulk, from jsonb through the handler's own decoder."""
    try:
        job, call = enqueue(takes, value, *more, **named), takes.call(value, *more, **named)
    except PayloadError:
        return
    with undone(connection):
        with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
            session.add(job)
            session.commit()
            ids = [job.id, *connection.scalars(insert_jobs([call]))]
        written = select(cast(Job.args, Text)).where(Job.id.in_(ids))
        for text in connection.scalars(written):
            args, kwargs = takes.decode(text)
            assert takes(*args, **kwargs) == (value, tuple(more), named)


@pytest.mark.parametrize("option", ["queue", "priority", "max_attempts", "delay", "run_at", "tags", "meta"])
@pytest.mark.parametrize(
    "value", [10**4_301, float("nan"), object(), b"\xff", ["\ud800"], {"\x00": 1}], ids=lambda one: type(one).__name__
)
def test_an_option_that_makes_no_sense_is_an_option_error(option: str, value: Any) -> None:
    """Also where Python itself refuses to show the value."""
    with pytest.raises(OptionError):
        TaskName("a").options(**{option: value})


@LOOK
@given(
    name=texts, queue=texts | anything, priority=st.integers(-1, 10) | anything, max_attempts=numbers | anything,
    due=st.none() | moments | anything, delay=st.none() | numbers | st.timedeltas(), tags=st.none() | st.lists(texts, max_size=2),
    meta=st.none() | st.dictionaries(texts, values, max_size=2), only=st.integers(0, 6), bulk=st.booleans(),
)  # fmt: skip
def test_options_are_refused_or_stored(
    connection: Connection, name: str, queue: Any, priority: Any, max_attempts: Any, due: Any, delay: Any, tags: Any,
    meta: Any, only: int, bulk: bool,
) -> None:  # fmt: skip
    """Names of tasks and queues, numbers, times, tags and meta: never an error that only the database raises."""
    options = {"queue": queue, "priority": priority, "max_attempts": max_attempts, "run_at": due, "delay": delay, "tags": tags, "meta": meta}  # fmt: skip
    chosen = list(options)[only]
    try:
        named = TaskName(name or "a").options(**{chosen: options[chosen]})
        call, job = named.call(), enqueue(named)
    except OptionError:
        return
    with undone(connection):
        if bulk:
            id = connection.scalars(insert_jobs([call])).one()
        else:
            with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
                session.add(job)
                session.commit()
                id = job.id
        made = row(connection, id)
        assert made.task == (name or "a")
        if chosen in {"queue", "priority", "max_attempts"} and options[chosen] is not None:
            assert getattr(made, chosen) == options[chosen]
        if chosen == "run_at" and due is not None:
            assert made.run_at == due.astimezone(UTC)
        if chosen == "meta":
            assert made.meta == (meta or {})


def apply(connection: Connection, *outcomes: Outcome) -> list[Any]:
    """The rows after claims of them ended so, in one batch."""
    ids = [make_job(connection, "running", lease_expires_at=timedelta(seconds=-1)) for _ in outcomes]
    ends = zip(ids, outcomes, strict=True)
    changes = [decide(Claim(id, 1, 1, 10), outcome, Rules(), random=0.5) for id, outcome in ends]
    assert default_store.apply(connection, changes) == dict.fromkeys(ids, Answer.APPLIED)
    return [row(connection, id) for id in ids]


@LOOK
@given(said=texts, kind=st.text(TROUBLE, min_size=1, max_size=8), times=st.sampled_from([1, 150, 5_000]))
def test_whatever_an_exception_says_is_kept(connection: Connection, said: str, kind: str, times: int) -> None:
    """Its type, message and traceback, cut and cleaned; so are the reasons that a handler or an operator gives."""
    odd = type("Made", (Odd,), {"__qualname__": kind.replace("\x00", "") or "x", "__module__": "ö"})
    try:
        raise odd(said * times)
    except Odd as error:
        failed = Failed(error, describe(error))
    reason = said * times
    outcomes: list[Outcome] = [failed, Retry(0, reason=reason), Cancel(reason), Discard(reason), Rescued(describe(odd(reason)))]  # fmt: skip
    with undone(connection):
        for made in apply(connection, *outcomes):
            (entry,) = made.errors
            assert len(entry["message"]) <= MAX_MESSAGE
            assert len(entry["traceback"]) <= MAX_TRACEBACK
            clean = said.encode("utf-8", "replace") == said.encode("utf-8", "surrogatepass") and "\x00" not in said
            if clean and times == 1 and said:
                assert entry["message"] == said
        id = make_job(connection)
        assert connection.scalars(discard_jobs(Job.id == id, reason=reason)).all() == [id]


def exactly(text: str) -> Any:
    """JSON with its numbers exactly as they are written."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@LOOK
@given(value=anything)
@example(value={"x": [float("nan")]})
@example(value=10**4_299)
@example(value=3.580730735412103e16)
def test_a_result_is_stored_or_the_job_completes_without(connection: Connection, value: Any) -> None:
    """What a handler returned never keeps its completion from being written."""
    try:
        text = takes.encode_result(value)
        outcome = Completed(text)
    except PayloadError as error:
        text, outcome = None, Completed(error=describe(error))
    with undone(connection):
        (made,) = apply(connection, outcome)
        assert made.status == "completed"
        assert made.errors == [] if text is not None else isinstance(made.errors[0]["message"], str)
        if text is not None:
            found = connection.scalar(select(cast(Job.result, Text)).where(Job.id == made.id))
            assert exactly(found) == exactly(text)  # jsonb writes 1e+16 as 10000000000000000
