"""Limits as values, as code declares them, and keys and units as options of a job."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sa_jobqueue import Breaker, KeyLimits, Limits, Rate, Registry, Schedule, TaskName, Unique, enqueue, task
from sa_jobqueue.errors import OptionError, TaskError
from sa_jobqueue.models import LimitRow
from sa_jobqueue.statements import open_breaker, set_limit


def test_limits_are_the_columns_of_their_row() -> None:
    """All of them, so that a limit that is not there any more is taken away."""
    limits = Limits(
        running=100,
        rate=Rate(500, per=timedelta(minutes=1), burst=50),
        per_key=KeyLimits(running=1, rate=Rate(20)),
        strict=True,
        when_full="drop_newest",
        max_waiting=1_000,
        share="time",
    )
    assert limits.columns() == {
        "running": 100, "rate_count": 500, "rate_seconds": 60.0, "rate_burst": 50,
        "key_running": 1, "key_rate_count": 20, "key_rate_seconds": 1.0, "key_rate_burst": 1,
        "strict": True, "when_full": "drop_newest", "max_waiting": 1_000, "share": "time",
        "rates": None, "key_rates": None, "per": None,
    }  # fmt: skip
    assert Limits().columns() == dict.fromkeys(limits.columns()) | {
        "strict": False, "when_full": "wait", "share": "starts",
    }  # fmt: skip
    assert limits.columns().keys() <= set(LimitRow.__table__.columns.keys())


def test_limits_are_values() -> None:
    """Equal where they say the same, usable as keys, and not to be changed."""
    assert Rate(3, per=60) == Rate(3, per=timedelta(minutes=1))
    assert len({Limits(rate=Rate(3)), Limits(rate=Rate(3, per=1.0))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().running = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Breaker(0), "a breaker's failures must be an integer from 1 to 1,000, not 0"),
        (lambda: Breaker(per=0.5), "a breaker's per must be from 1 second to a day, not 0.5"),
        (lambda: Breaker(rest=timedelta(days=2)), "a breaker's rest must be from 1 second to a day"),
        (lambda: Breaker(on=()), r"a breaker's on must be types of exceptions, as \(TimeoutError,\), not \(\)"),
        (lambda: Breaker(on="TimeoutError"), "a breaker's on must be types of exceptions"),  # type: ignore[arg-type]
        (lambda: Breaker(on=(KeyboardInterrupt,)), "a breaker's on must be types of exceptions"),  # type: ignore[arg-type]
        (lambda: Breaker(by="host"), "a breaker's by must be \"task\" or \"key\", not 'host'"),  # type: ignore[arg-type]
        (lambda: open_breaker("a", rest=0), "open_breaker: rest must be from 1 second to a day, not 0"),
        (lambda: Rate(0), "a rate's count must be an integer from 1 to 1,000,000,000, not 0"),
        (lambda: Rate(True), "a rate's count must be an integer"),
        (lambda: Rate(1.5), "a rate's count must be an integer"),  # type: ignore[arg-type]
        (lambda: Rate(1, per=0), "a rate's per must be from a microsecond to a year, not 0"),
        (lambda: Rate(1, per=timedelta(days=367)), "a rate's per must be from a microsecond to a year"),
        (lambda: Rate(1, per="1s"), "a rate's per must be seconds or a timedelta, not '1s'"),  # type: ignore[arg-type]
        (lambda: Rate(1, burst=0), "a rate's burst must be an integer from 1"),
        (lambda: KeyLimits(running=0), "running must be an integer from 1 to 1,000,000, not 0; to start none, pause it"),
        (lambda: KeyLimits(rate=20), r"rate must be Rate\(count, per=seconds\) or None, not 20"),  # type: ignore[arg-type]
        (lambda: Limits(running=-1), "running must be an integer from 1 to 1,000,000, not -1"),
        (lambda: Limits(running="3"), "running must be an integer"),  # type: ignore[arg-type]
        (lambda: Limits(rate=20), r"rate must be Rate\(count, per=seconds\) or None, not 20"),  # type: ignore[arg-type]
        (lambda: Limits(per_key=1), r"per_key must be KeyLimits\(...\) or None, not 1"),  # type: ignore[arg-type]
        (lambda: Limits(strict=1), "strict must be True or False, not 1"),  # type: ignore[arg-type]
        (lambda: Limits(when_full="drop"), "when_full must be one of wait, drop_newest, replace_oldest_waiting"),  # type: ignore[arg-type]
        (lambda: Limits(share="jobs"), "share must be one of starts, time, not 'jobs'"),  # type: ignore[arg-type]
        (lambda: set_limit("sync", owner="task", share="time"), "share is of a queue"),
        (lambda: set_limit("sync", key="42", share="time"), "share is for all keys of the queue, and not for one key"),
        (lambda: Limits(max_waiting=-1, when_full="drop_newest"), "max_waiting must be an integer from 0 to 1,000,000"),
    ],
)  # fmt: skip
def test_what_cannot_limit_is_refused(made: Any, said: str) -> None:
    """Where it is written, before any SQL."""
    with pytest.raises(OptionError, match=said):
        made()


# ---- what code declares


def test_a_registry_says_which_limits_its_code_declares() -> None:
    """Of tasks and of queues; not those that limit nothing."""
    registry = Registry()

    @task(registry=registry, name="sync", queue="slow", limits=Limits(running=3), aliases=["old"])
    def sync() -> None: ...

    @task(registry=registry, name="free", limits=Limits())
    def free() -> None: ...

    registry.queue("slow", limits=Limits(running=5))
    assert sync.limits == Limits(running=3)
    assert registry.limits == {("queue", "slow"): Limits(running=5), ("task", "sync"): Limits(running=3)}


def test_a_queues_limits_are_declared_once() -> None:
    """A module that is loaded again says the same; two that differ cannot both hold."""
    registry = Registry()
    registry.queue("slow", limits=Limits(running=5))
    registry.queue("slow", limits=Limits(running=5))
    with pytest.raises(OptionError, match=r"queue 'slow' has other limits already: Limits\(running=5"):
        registry.queue("slow", limits=Limits(running=6))


def test_what_is_no_limit_is_refused_where_it_is_declared() -> None:
    registry = Registry()
    with pytest.raises(TaskError, match=r"limits must be Limits\(...\), not 3"):
        task(registry=registry, limits=3)  # type: ignore[call-overload]
    with pytest.raises(TaskError, match=r"breaker must be Breaker\(...\), not 3"):
        task(registry=registry, breaker=3)  # type: ignore[call-overload]
    with pytest.raises(TaskError, match=r"share is of a queue, .*write Registry.queue\("):
        task(registry=registry, limits=Limits(share="time"))(print)
    with pytest.raises(OptionError, match=r"queue 'slow': limits must be Limits\(...\), not 3"):
        registry.queue("slow", limits=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="queue must have 1 to 200 characters"):
        registry.queue("", limits=Limits(running=1))


# ---- keys and units


def test_a_job_has_a_key_and_units_where_its_options_say_so() -> None:
    """Of a task and of a name; a later option takes the key off."""

    @task(registry=Registry(), name="sync")
    def sync(tenant: int) -> None: ...

    keyed = sync.options(key="42", units=3)
    assert (keyed.call(1).key, keyed.call(1).units) == ("42", 3)
    job = enqueue(keyed, 1)
    assert (job.concurrency_key, job.key, job.units) == ("42", "42", 3)
    off = keyed.options(key=False).call(1)
    assert (off.key, off.units) == (None, 3)
    assert (sync.call(1).key, enqueue(sync, 1).key, enqueue(sync, 1).units) == (None, None, None)
    assert TaskName("sync").options(key="ä" * 200).call(tenant=1).key == "ä" * 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ""}, "key must have 1 to 200 characters, not 0"),
        ({"key": "x" * 201}, "key must have 1 to 200 characters, not 201"),
        ({"key": 42}, "key must be a string, not 42"),
        ({"key": True}, "key must be a string, not True"),
        ({"key": "a\0"}, "key .* holds a NUL"),
        ({"key": "\ud800"}, "key .* holds a lone surrogate"),
        ({"key": "\x01sync"}, "must not begin with"),
        ({"units": 0}, "units must be an integer from 1 to 32,767, not 0"),
        ({"units": 32_768}, "units must be an integer from 1 to 32,767, not 32768"),
        ({"units": True}, "units must be an integer"),
    ],
    ids=lambda one: "" if isinstance(one, dict) else None,
)
def test_a_key_and_units_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TaskName("sync").options(**options)


# ---- debounce


def test_a_debounced_job_is_due_later_and_replaces_the_one_that_waits() -> None:
    """Of the same task and key; the time is not moved beyond `max_wait`."""
    name = TaskName("shop.sync")
    call = name.options(debounce=timedelta(seconds=5), max_wait=timedelta(minutes=1), key="42").call()
    assert (call.run_at, call.key) == (timedelta(seconds=5), "42")
    assert json.loads(call.uniqueness or "") == {
        "key": "debounce:shop.sync:42", "scope": "queued", "on_clash": "replace", "replace": ["args", "run_at", "priority"],
        "max_wait": 60.0,
    }  # fmt: skip
    alone = json.loads(name.options(debounce=5).call().uniqueness or "")
    assert (alone["key"], "max_wait" in alone) == ("debounce:shop.sync", False)


def test_no_two_tasks_and_keys_share_a_debounce() -> None:
    """Whatever characters they have."""
    pairs = [("a", None), ("a", "b"), ("a:b", None), ("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a%3Ab", None)]
    keys = {TaskName(name).options(debounce=5, key=key or False).call().uniqueness for name, key in pairs}
    assert len(keys) == len(pairs)


def test_a_debounce_can_be_changed_and_taken_off() -> None:
    """Either part by itself."""
    one = TaskName("sync").options(debounce=5, max_wait=60)
    assert json.loads(one.options(debounce=10).call().uniqueness or "")["max_wait"] == 60
    assert one.options(max_wait=90).call().run_at == timedelta(seconds=5)
    assert (one.options(debounce=False).call().uniqueness, one.options(debounce=False).call().run_at) == (
        None,
        timedelta(),
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"debounce": 0}, "debounce must be more than 0 seconds; False means no wait"),
        ({"debounce": "5s"}, "debounce must be seconds or a timedelta, not '5s'"),
        ({"max_wait": 5}, "max_wait is that of a debounce: give debounce="),
        ({"debounce": False, "max_wait": 5}, "which debounce=False takes off"),
        ({"debounce": 5, "max_wait": 0}, "max_wait must be more than 0 seconds"),
        ({"debounce": 5, "max_wait": 4}, "max_wait, 4 s, must not be shorter than debounce, 5 s"),
        ({"debounce": 5, "unique": Unique("k")}, "unique and debounce exclude each other"),
        ({"debounce": 5, "delay": 3}, "debounce says when the job is due"),
        ({"debounce": 5, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "debounce says when the job is due"),
    ],
    ids=lambda one: "" if isinstance(one, dict) else None,
)
def test_a_debounce_that_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TaskName("sync").options(**options)


def test_what_a_task_says_already_may_not_contradict_its_debounce() -> None:
    """Its own rule, a limit that ends before it is due, a schedule that says when."""
    sync = task(registry=Registry(), name="sync", unique=Unique(by=()))(lambda: None)
    with pytest.raises(OptionError, match="unique=False takes a task's own rule off"):
        sync.options(debounce=5)
    assert sync.options(debounce=5, unique=False).call().uniqueness
    with pytest.raises(
        OptionError, match=r"the job expires at .* which is not after the time at which it is due, 0:00:05"
    ):
        TaskName("sync").options(debounce=5, expires_in=5).call()
    with pytest.raises(OptionError, match="a schedule says when its jobs are due"):
        Schedule("0 7 * * *", TaskName("sync").options(debounce=5))
