"""Keys that only limit, `options(key="acme", keys={"provider": "openai"})`: they limit how many jobs run. The turns of `key` change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, text, update

from sa_jobqueue import KeyLimits, Limits, Rate, WaitReason
from sa_jobqueue.models import LimitState
from sa_jobqueue.statements import list_limits, remove_limit, set_limit, why_waiting
from tests.support.factory import TABLE
from tests.support.limits import KEYS, Claimant, end, fill, limit
from tests.support.nightly import nightly

#: A period that is longer than any test.
LONG = 1_000_000.0


def of(**keys: str) -> dict[str, Any]:
    """The `extras` of a job with these other keys."""
    return {"keys": keys}


def per(name: str = "default", *, owner: Any = "queue", **limits: KeyLimits) -> Any:
    """The statement that limits each value of these keys."""
    return set_limit(name, owner=owner, per=limits)


def claimed(connection: Connection, free: int | Mapping[str, int] = 10) -> list[int]:
    return sorted(job.id for job in Claimant(connection, *(free if isinstance(free, Mapping) else ())).claim(free))


def test_no_more_run_than_the_limit_of_each_value_says(connection: Connection) -> None:
    """Whatever keys the jobs have turns by; and the end of a job lets the next one start."""
    connection.execute(per(provider=KeyLimits(running=2)))
    first = fill(connection, 2, "acme", extras=of(provider="openai"))
    third = fill(connection, 1, "zeta", extras=of(provider="openai"))
    other = fill(connection, 2, "beta", extras=of(provider="other"))

    claimant = Claimant(connection)
    found = sorted(job.id for job in claimant.claim(10))
    assert len(found) == 4
    assert set(other) < set(found)
    assert claimant.claim(10) == []
    assert claimant.state.permit
    assert claimant.state.rate_in is None

    end(connection, [found[0]])
    assert len(claimant.claim(10)) == 1
    assert len({*first, *third} - set(found)) == 1


@pytest.mark.parametrize("free", [1, *nightly(3), 300])
@pytest.mark.parametrize("more", [{}, {"share": "time"}, {"strict": True}], ids=["plain", "time", "strict"])
def test_no_key_starves_behind_a_full_value(connection: Connection, free: int, more: dict[str, Any]) -> None:
    """However many keys with jobs for the full value are before it in the ring, and however few slots are free."""
    connection.execute(set_limit("default", per={"provider": KeyLimits(running=1)}, **more))
    for number in range(40):
        fill(connection, 2, f"a{number:02}", extras=of(provider="openai"))
    Claimant(connection).claim(1)
    last = fill(connection, 1, "zeta", extras=of(provider="other"))

    assert claimed(connection, free) == last


def test_many_full_values_keep_no_key_waiting(connection: Connection) -> None:
    """Each key waits for a value of its own, and one slot is free. The keys are looked at together, and not one by one."""
    connection.execute(per(account=KeyLimits(running=1)))
    for number in range(30):
        fill(connection, 2, f"a{number:02}", extras=of(account=f"{number}"))
    Claimant(connection).claim(30)
    last = fill(connection, 1, "zeta", extras=of(account="free"))
    calls = text("SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'further_waits'")
    connection.execute(text("SET LOCAL track_functions = 'all'"))

    before = connection.scalar(calls)
    assert claimed(connection, 1) == last
    assert connection.scalar(calls) - before < 10


def test_jobs_that_another_limit_stops_take_no_permits(connection: Connection) -> None:
    """Jobs of a paused task are first in the ring: the permit goes to the job behind them, in the same claim."""
    connection.execute(per(provider=KeyLimits(running=1)))
    limit(connection, "paused", owner="task", running=1)
    fill(connection, 1, "a", task="paused")
    claimed(connection)
    for name in "abc":
        fill(connection, 1, name, task="paused", extras=of(provider="openai"))
    last = fill(connection, 1, "z", extras=of(provider="openai"))

    assert claimed(connection) == last


def test_a_waiting_job_keeps_the_order_of_its_key(connection: Connection) -> None:
    """`key` orders: behind a job that waits for its provider, the jobs of its key wait, too."""
    connection.execute(per(provider=KeyLimits(running=1)))
    first = fill(connection, 2, "acme", extras=of(provider="openai"))
    fill(connection, 1, "acme", extras=of(provider="other"))

    assert claimed(connection) == first[:1]


def test_several_keys_hold_together(connection: Connection) -> None:
    """A job starts if all its keys have room, and takes no permit of one while it waits for another."""
    connection.execute(per(a=KeyLimits(running=1), b=KeyLimits(running=1)))
    one = fill(connection, 1, "1", extras=of(a="x", b="y"))
    fill(connection, 1, "2", extras=of(a="y", b="y"))
    three = fill(connection, 1, "3", extras=of(a="y", b="z"))

    assert claimed(connection) == [*one, *three]


def test_a_limit_of_a_task_holds_in_all_queues_of_one_claim(connection: Connection) -> None:
    """Jobs that the claim has picked from the queue before count, although they do not run yet."""
    connection.execute(per("a_task", owner="task", provider=KeyLimits(running=3)))
    for queue in ("one", "two"):
        fill(connection, 2, "acme", queue=queue, extras=of(provider="openai"))
        fill(connection, 2, "acme", queue=queue, task="another", extras=of(provider="openai"))

    assert len(claimed(connection, {"one": 10, "two": 10})) == 3 + 2


def test_an_override_holds_for_one_value_until_it_is_removed(connection: Connection) -> None:
    """Of a queue or of a task, also where code declares no limit; the same text as a key that orders is another thing."""
    connection.execute(set_limit("default", key="openai", of="provider", running=1))
    jobs = fill(connection, 3, "openai", extras=of(provider="openai"))
    claimant = Claimant(connection)
    assert [job.id for job in claimant.claim()] == jobs[:1]
    connection.execute(set_limit("default", key="openai", of="provider", running=2))
    assert [job.id for job in claimant.claim()] == jobs[1:2]

    (row,) = connection.execute(list_limits()).mappings()
    assert (row["owner"], row["name"], row["of"], row["key"], row["running"], row["runs"], row["waits"]) == (
        "queue", "default", "provider", "openai", 2, 2, 1,
    )  # fmt: skip

    connection.execute(remove_limit("default", key="openai", of="provider"))
    assert [job.id for job in claimant.claim()] == jobs[2:]
    assert connection.execute(KEYS.select()).all() == []


def test_an_override_of_a_task_is_known_to_the_workers(connection: Connection) -> None:
    """The row of the task, by which they know that it has limits, is there for as long as the override."""
    connection.execute(set_limit("a_task", key="openai", of="provider", owner="task", running=1))
    jobs = fill(connection, 2, "acme", extras=of(provider="openai"))
    assert claimed(connection) == jobs[:1]

    connection.execute(set_limit("a_task", owner="task", running=5))
    connection.execute(remove_limit("a_task", owner="task"))
    assert claimed(connection) == []


def test_a_rate_of_another_key_has_a_state_of_its_own(connection: Connection) -> None:
    """Apart from that of a key with the same text by which jobs have turns."""
    rate = Rate(2, per=LONG, burst=2)
    tokens = Rate(1_000, per=LONG, burst=1_000, unit="tokens")
    limits = Limits(
        per_key=KeyLimits(rate=Rate(9, per=LONG, burst=9)), per={"provider": KeyLimits(rates=[rate, tokens])}
    )
    limit(connection, **limits.columns())
    fill(connection, 2, "openai", extras={**of(provider="openai"), "units": {"tokens": 600}})
    fill(connection, 3, "acme", extras=of(provider="openai"))

    assert len(claimed(connection, 2)) == 2
    assert claimed(connection) == []
    found = connection.execute(LimitState.__table__.select().order_by(LimitState.owner, LimitState.key)).mappings()
    assert {(row["owner"], row["key"]) for row in found} == {
        ("queue", "openai"), ("queue", "acme"), ("queue:provider /1000000", "openai"), ("queue:provider tokens/1000000", "openai"),
    }  # fmt: skip


def test_what_was_written_by_hand_fails_no_claim(connection: Connection) -> None:
    """What is no value of a key limits nothing."""
    connection.execute(per(provider=KeyLimits(running=1)))
    odd: list[Any] = [None, [], {}, "x" * 3_000, 3]
    ids = [fill(connection, 1, "acme", extras={"keys": {"provider": value}})[0] for value in odd]
    ids += [fill(connection, 1, "acme", extras=value)[0] for value in ({"keys": "many"}, {"keys": [1]}, {"keys": None})]
    connection.execute(update(TABLE).where(TABLE.c.id == ids[-1]).values(concurrency_key=None))

    assert claimed(connection, 20) == ids


def test_why_names_the_key_and_its_value(connection: Connection) -> None:
    """With the limit and how many run."""
    connection.execute(per(provider=KeyLimits(running=1, rate=Rate(1, per=LONG))))
    fill(connection, 1, "acme", extras=of(provider="openai"))
    (waiting,) = fill(connection, 1, "beta", extras=of(provider="openai"))
    claimed(connection)

    full, late = sorted(str(WaitReason(*row)) for row in connection.execute(why_waiting(waiting)))
    assert full == "waits for limit default/provider=openai: 1 of 1 running"
    assert late.startswith("waits for rate default/provider=openai: 1 in 1e+06 s, until ")
