"""Rates of named units: claims start no more than they allow, next to the rates and limits of the columns."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, select, text, update

from sa_jobqueue import KeyLimits, Rate, WaitReason
from sa_jobqueue.models import LimitState
from sa_jobqueue.sql.notes import correct_units
from sa_jobqueue.statements import set_limit, why_waiting
from tests.support.factory import TABLE
from tests.support.limits import Claimant, end, fill

#: A period that is longer than any test.
LONG = 1_000_000.0


def tokens(number: int) -> dict[str, Any]:
    """The `extras` of a job that takes this many tokens."""
    return {"units": {"tokens": number}}


def of_tokens(count: int, burst: int) -> Rate:
    return Rate(count, per=LONG, burst=burst, unit="tokens")


def claimed(connection: Connection, free: int = 10) -> list[int]:
    return sorted(job.id for job in Claimant(connection).claim(free))


def test_a_rate_of_tokens_starts_what_the_burst_holds(connection: Connection) -> None:
    """And the next claim goes on from what the state says was used."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 1_000)]))
    first = fill(connection, 3, extras=tokens(400))

    assert claimed(connection) == first[:2]
    state = Claimant(connection)
    assert state.claim() == []
    assert state.state.rate_in is not None
    assert 0 < state.state.rate_in <= LONG


def test_a_job_without_such_units_takes_nothing(connection: Connection) -> None:
    """The rate of starts without a unit holds beside it, for all jobs."""
    connection.execute(set_limit("default", rates=[Rate(3, per=LONG, burst=3), of_tokens(1_000, 1_000)]))
    ids = fill(connection, 5)

    assert claimed(connection) == ids[:3]


def test_a_smaller_job_does_not_pass_the_one_that_waits(connection: Connection) -> None:
    """A rate of the queue: behind the job that waits, all of them do."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 1_000)]))
    small = fill(connection, 1, extras=tokens(100))
    fill(connection, 1, extras=tokens(950))
    fill(connection, 3, extras=tokens(10))

    assert claimed(connection) == small
    assert claimed(connection) == []


def test_a_job_of_more_units_than_the_burst_starts_when_all_of_it_is_free(connection: Connection) -> None:
    """Alone; the next job waits until it is paid for."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 100)]))
    first, _ = fill(connection, 2, extras=tokens(5_000))

    assert claimed(connection) == [first]
    assert claimed(connection) == []


def test_each_key_has_its_own_rate_of_units(connection: Connection) -> None:
    """Unless an operator has set another one for it; a key that waits does not keep the others waiting."""
    connection.execute(set_limit("default", per_key=KeyLimits(rates=[of_tokens(1_000, 500)])))
    connection.execute(set_limit("default", key="large", rates=[of_tokens(1_000, 1_200)]))
    small = fill(connection, 3, "small", extras=tokens(400))
    large = fill(connection, 4, "large", extras=tokens(400))

    assert claimed(connection) == [small[0], *large[:3]]


def test_a_tasks_rate_of_units_lets_other_tasks_pass(connection: Connection) -> None:
    """Also where jobs without a key stand before theirs."""
    connection.execute(set_limit("ask", owner="task", rates=[of_tokens(1_000, 500)]))
    asks = fill(connection, 4, task="ask", extras=tokens(400))
    others = fill(connection, 2, task="other")

    claimant = Claimant(connection)
    found = [job.id for job in claimant.claim(4)]
    end(connection, found)
    found += [job.id for job in claimant.claim(4)]

    assert sorted(found) == [asks[0], *others]


def test_what_was_written_by_hand_fails_no_claim(connection: Connection) -> None:
    """What is no amount counts as one unit, and what is no object as none."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 1_000)]))
    odd: list[Any] = ["many", -5, 1.5, 10**30, None, [], {}]
    ids = [fill(connection, 1, extras={"units": {"tokens": value}})[0] for value in odd]
    ids += [fill(connection, 1, extras=value)[0] for value in ({"units": "many"}, {"units": [1]})]

    assert claimed(connection, 20) == ids


def test_plain_states_are_as_before(connection: Connection) -> None:
    """A further rate keeps its state under the owner's name with the unit and the seconds behind it."""
    connection.execute(set_limit("default", rates=[Rate(3, per=60, burst=3), Rate(9, per=60, unit="tokens")]))
    fill(connection, 1, extras=tokens(1))
    assert len(claimed(connection)) == 1

    found = connection.execute(select(LimitState.owner, LimitState.name, LimitState.key).order_by(LimitState.owner))
    assert found.all() == [("queue", "default", ""), ("queue tokens/60", "default", "")]
    assert connection.scalar(select(text("count(*)")).select_from(TABLE).where(TABLE.c.status == "running")) == 1


def test_why_says_the_unit(connection: Connection) -> None:
    """With the time from which on the job may start."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 1_000)]))
    _, waiting = fill(connection, 2, extras=tokens(800))
    claimed(connection)

    (reason,) = [WaitReason(*row) for row in connection.execute(why_waiting(waiting))]

    assert (reason.owner, reason.name, reason.what, reason.limit, reason.reason) == (
        "queue", "default", "rate", 1_000, "tokens",
    )  # fmt: skip
    assert str(reason).startswith("waits for rate default: 1000 tokens in 1e+06 s, until ")


@pytest.mark.parametrize(("used", "then"), [(200, 1), (900, 0)])
def test_what_was_used_takes_the_place_of_the_estimate(connection: Connection, used: int, then: int) -> None:
    """A job that was to take 600 of 1,000 has used fewer, or more; a second report replaces the first."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 1_000)]))
    fill(connection, 1, extras=tokens(600))
    (job,) = Claimant(connection).claim(1)
    fill(connection, 1, extras=tokens(700))
    assert claimed(connection) == []

    for before, now in ((None, 500), (500, used)):
        given = f'{{"tokens": [{"null" if before is None else before}, {now}]}}'
        call = text("SELECT sa_jobqueue.further_correct(:id, :token, CAST(:used AS jsonb))")
        assert connection.scalar(call, {"id": job.id, "token": job.claim_token, "used": given})

    assert len(claimed(connection)) == then


def test_the_report_of_a_stale_claim_corrects_nothing(connection: Connection) -> None:
    """A worker that was frozen reports after another has claimed the job: the rate keeps both estimates, until the new claim reports."""
    connection.execute(set_limit("default", rates=[of_tokens(1_000, 1_000)]))
    (id,) = fill(connection, 1, extras=tokens(400))
    (stale,) = Claimant(connection).claim(1)
    connection.execute(update(TABLE).where(TABLE.c.id == id).values(status="queued", lease_expires_at=None))
    (current,) = Claimant(connection).claim(1)
    (waiting,) = fill(connection, 1, extras=tokens(300))

    def corrected(token: int | None) -> object:
        return connection.scalar(correct_units(id=id, token=token, used='{"tokens": [null, 0]}'))

    assert corrected(stale.claim_token) is False
    assert claimed(connection) == []
    assert corrected(current.claim_token) is True
    assert claimed(connection) == [waiting]
