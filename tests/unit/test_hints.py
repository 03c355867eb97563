"""What developers who come from another queue type first: the error says what to write here."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import UnmappedInstanceError

from sa_jobqueue.enqueueing.jobs import enqueue
from sa_jobqueue.errors import OptionError, PayloadError, TaskError
from sa_jobqueue.rules.hints import JOB, TASK
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.options import Enqueueable
from sa_jobqueue.tasks.registry import Registry, TaskName


@task(registry=Registry(), name="shop.send")
def send(order_id: int) -> None: ...


foreign: Any = send
declare: Any = task

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: enqueue(foreign, 1, queue="mail"), PayloadError, "it takes (order_id); write send.options(queue=...)"),
    (lambda: enqueue(foreign, 1, timeout=3), PayloadError, "write @task(timeout=...)"),
    (lambda: enqueue(foreign, 1, countdown=3), PayloadError, "write send.options(delay=3)"),
    (lambda: foreign.delay(1), AttributeError, "has no attribute 'delay': write session.add(enqueue(send, ...))"),
    (lambda: foreign.apply_async((1,)), AttributeError, "write session.add(enqueue(send, ...))"),
    (lambda: foreign.s(1), AttributeError, "build a Workflow: w = Workflow(name); w.add(send, ...)"),
    (lambda: foreign.options(countdown=3), OptionError, "unknown option countdown: write send.options(delay=3)"),
    (lambda: foreign.options(eta=3), OptionError, "write send.options(run_at=...)"),
    (lambda: foreign.options(expires=3), OptionError, "write send.options(expires_in=60)"),
    (lambda: foreign.options(retry=True), OptionError, "write @task(retry=...)"),
    (lambda: foreign.options(timeout=3), OptionError, "write @task(timeout=...)"),
    (lambda: foreign.options(prio=3), OptionError, "the options are queue, priority, run_at"),
    (lambda: declare(max_retries=3), TaskError, "write @task(max_attempts=4)"),
    (lambda: declare(autoretry_for=(OSError,)), TaskError, "leave it out: every exception is tried again"),
    (lambda: declare(ignore_result=True), TaskError, "leave it out: results are kept only with @task(record=True)"),
    (lambda: foreign.options(max_retries=3), OptionError, "or send.options(max_attempts=4)"),
    (lambda: declare(cron="0 3 * * *"), TaskError, 'write default_registry.schedule("0 3 * * *", your_task)'),
    (lambda: declare("mail"), TaskError, "write @task(queue='mail'), or @task(name='mail')"),
    (lambda: foreign.retry(60), AttributeError, "raise Retry(60) in the handler, or execute retry_jobs(Job.id == ...)"),
    (lambda: foreign.schedule("0 3 * * *"), AttributeError, 'write default_registry.schedule("0 3 * * *", send)'),
    (lambda: foreign.perform_async(1), AttributeError, "write session.add(enqueue(send, ...))"),
    (lambda: enqueue(foreign(1)), OptionError, "write enqueue(send, 1), not enqueue(send(1))"),
    (lambda: declare(delay=3), TaskError, "write your_task.options(delay=...)"),
    (lambda: declare(prio=3), TaskError, "the options are name, aliases, queue"),
]


@pytest.mark.parametrize(("wrong", "error", "said"), [pytest.param(*one, id=one[2]) for one in WRONG])
def test_a_word_of_another_queue_is_answered_with_ours(
    wrong: Callable[[], Any], error: type[Exception], said: str
) -> None:
    """A foreign option or method is refused by an error that names what to write."""
    with pytest.raises(error) as refused:
        wrong()

    assert said in str(refused.value)


def test_a_task_that_is_known_by_name_hints_too() -> None:
    """The hint is code that can be copied."""
    with pytest.raises(AttributeError, match=r"enqueue\(TaskName\('shop.send'\), ...\)"):
        TaskName("shop.send").delay  # type: ignore[attr-defined]  # noqa: B018


def test_a_task_that_is_added_to_a_session_hints_too() -> None:
    """SQLAlchemy's error has the hint as its cause."""
    with pytest.raises(UnmappedInstanceError) as refused:
        Session().add(send)

    assert "write session.add(enqueue(send, ...))" in str(refused.value.__cause__)


def test_the_hints_know_every_option() -> None:
    """An option that is given in the wrong place is answered with the right one."""
    of_job = set(inspect.signature(Enqueueable.options).parameters) - {"self", "unknown"}
    of_task = set(inspect.signature(task).parameters) - {"handler", "unknown"}

    assert of_job == JOB
    assert of_task - of_job == TASK


def test_hints_do_not_pretend_that_an_attribute_is_there() -> None:
    """What asks a task for attributes, copies it or pickles it goes on as before."""
    changed = send.options(queue="mail")
    name = TaskName("shop.send")

    assert not hasattr(send, "delay")
    assert not hasattr(send, "__len__")
    assert copy.copy(changed) is changed
    assert pickle.loads(pickle.dumps(name)).options(queue="mail").queue == "mail"
    assert copy.deepcopy(name).name == "shop.send"
