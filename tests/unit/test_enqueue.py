"""Enqueueing without a database: the row that is made, the statement that is built."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import object_session

from sa_jobqueue.enqueueing.jobs import enqueue, enqueue_many
from sa_jobqueue.errors import JobQueueError, OptionError, PayloadError
from sa_jobqueue.models import Job
from sa_jobqueue.rules.job_fields import RARE_FIELDS
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.tasks.calls import RARE, Call
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.registry import Registry, TaskName


@task(registry=Registry(), queue="mail", priority=7, max_attempts=3)
def send(order_id: int, tags: list[str] | None = None) -> None: ...


def compiled(statement: Any) -> Any:
    return statement.compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]


def test_a_job_has_the_tasks_options() -> None:
    """It is an ordinary ORM object, in no session yet."""
    job = enqueue(send, 7, tags=["x"])

    assert (job.task, job.queue, job.priority, job.max_attempts) == (send.name, "mail", 7, 3)
    assert job.args == {"order_id": 7, "tags": ["x"]}
    assert job.meta == {}
    assert job.status is JobStatus.QUEUED
    assert object_session(job) is None


def test_options_of_a_call_win_over_the_tasks() -> None:
    """What they do not say stays the task's."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    job = enqueue(send.options(queue="slow", run_at=moment, meta={"a": [1]}), 7)

    assert (job.queue, job.priority, job.run_at, job.meta) == ("slow", 7, moment, {"a": [1]})
    assert enqueue(send.options(delay=5), 7).run_at == timedelta(seconds=5)


def test_jobs_share_nothing() -> None:
    """What one job's owner changes is not the other's."""
    tags = ["x"]
    task = send.options(meta={"a": [1]})
    one, other = enqueue(task, 7, tags), enqueue(task, 7, tags)
    one.args["tags"].append("y")
    one.meta["a"].append(2)

    assert tags == ["x"]
    assert other.args == {"order_id": 7, "tags": ["x"]}
    assert other.meta == {"a": [1]}


def test_a_job_may_be_made_by_the_tasks_name() -> None:
    """For producers that do not have the handler's code."""
    job = enqueue("shop.mail", order_id=1)
    slow = enqueue(TaskName("shop.mail").options(queue="slow"), order_id=1)

    assert (job.task, job.queue, job.args) == ("shop.mail", "default", {"order_id": 1})
    assert (slow.task, slow.queue, slow.args) == ("shop.mail", "slow", {"order_id": 1})


def test_a_handlers_arguments_may_have_any_name() -> None:
    """Also those of `enqueue` and `Task.call`."""

    @task(registry=Registry())
    def odd(task: int, self: int, args: int, calls: int) -> None: ...

    assert enqueue(odd, 1, self=2, args=3, calls=4).args == {"task": 1, "self": 2, "args": 3, "calls": 4}
    assert enqueue("odd", task=1, name=2, self=3).args == {"task": 1, "name": 2, "self": 3}


@pytest.mark.parametrize("what", [5, len, send.handler], ids=lambda one: type(one).__name__)
def test_only_a_task_or_a_name_can_be_enqueued(what: Any) -> None:
    """A plain function is answered with the decorator that makes it a task."""
    with pytest.raises(OptionError, match=r"decorate the function with @task"):
        enqueue(what)


def test_enqueue_answers_a_call_with_the_function_that_takes_it() -> None:
    """`Task.call` is for `enqueue_many`."""
    with pytest.raises(OptionError, match=r"a Call is for enqueue_many\(\[call\]\)"):
        enqueue(send.call(1))  # type: ignore[call-overload]


@pytest.mark.parametrize("what", [enqueue(send, 1), send, None, ("a",) * 7], ids=lambda one: type(one).__name__)
def test_only_calls_can_be_enqueued_in_bulk(what: Any) -> None:
    """Anything else is answered with how a call is made."""
    with pytest.raises(OptionError, match=r"takes calls, task.call\(...\)"):
        enqueue_many([what])


def test_every_refusal_is_a_job_queue_error_and_a_value_error() -> None:
    """So either can be caught."""
    for attempt in (lambda: enqueue(send, None), lambda: enqueue("")):  # type: ignore[call-overload]
        with pytest.raises(ValueError) as error:
            attempt()
        assert isinstance(error.value, (PayloadError, OptionError))
        assert isinstance(error.value, JobQueueError)


def test_the_statement_does_not_grow_with_the_batch() -> None:
    """The same text and the same cache key for one call and for many."""
    one: Any = enqueue_many([send.call(1)])
    many: Any = enqueue_many([send.options(delay=number).call(1) for number in range(50)])

    assert str(compiled(one)) == str(compiled(many))
    assert one._generate_cache_key() == many._generate_cache_key()
    assert one._generate_cache_key() is not None
    assert [len(value) for value in compiled(many).params.values()] == [50] * 8


def test_a_changed_statement_keeps_its_calls() -> None:
    """Also a copy of it, and a statement that has it as a CTE."""
    whole: Any = enqueue_many([send.call(1), send.call(2)])
    inserted = whole.cte("inserted")
    changed = [whole.returning(Job.task), whole.execution_options(x=1), whole._clone(), select(inserted.c.id)]

    for statement in changed:
        assert "INSERT INTO sa_jobqueue.job" in str(compiled(statement))
        assert compiled(statement).params["call_args"] == ['{"order_id":1}', '{"order_id":2}']


def test_enqueue_many_takes_any_iterable() -> None:
    """It is read once, so a generator will do."""

    def calls() -> Any:
        yield send.call(1)
        yield TaskName("other").call(a=1)

    assert compiled(enqueue_many(calls())).params["call_task"] == [send.name, "other"]


def test_rare_values_of_a_call_stand_together() -> None:
    """`enqueue` and `enqueue_many` see at one comparison whether a call has any value that few calls have."""
    assert {*Call._fields[RARE]} == {*(field.attribute for field in RARE_FIELDS), "columns", "after", "waiting"}


def test_a_call_is_a_value() -> None:
    """Equal calls are equal, and none can be changed."""
    assert send.call(1) == send.call(order_id=1)
    assert isinstance(send.call(1), Call)
    with pytest.raises(AttributeError):
        send.call(1).queue = "x"  # type: ignore[misc]
