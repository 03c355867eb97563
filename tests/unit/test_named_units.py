"""Units with names: in rates, in the options of a job, and in what a handler reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sa_jobqueue import KeyLimits, Limits, Rate, Registry, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.errors import OptionError
from sa_jobqueue.statements import set_limit
from sa_jobqueue.testing import FakeJobContext
from sa_jobqueue.worker.running.notes import JobReports


def test_the_first_rate_without_a_unit_is_in_the_columns() -> None:
    """The others are JSON beside it; with none of them it is NULL."""
    rates = [Rate(9, per=60, burst=2, unit="tokens"), Rate(500, per=60), Rate(9_000, per=86_400)]
    columns = Limits(rates=rates, per_key=KeyLimits(rates=rates[:1])).columns()

    assert (columns["rate_count"], columns["rate_seconds"], columns["rate_burst"]) == (500, 60.0, 1)
    tokens = {"unit": "tokens", "count": 9, "seconds": 60.0, "burst": 2}
    assert columns["rates"] == [tokens, {"unit": "", "count": 9_000, "seconds": 86_400.0, "burst": 1}]
    assert (columns["key_rate_count"], columns["key_rates"]) == (None, [tokens])
    assert Limits(rates=[Rate(500, per=60)]).columns() == Limits(rate=Rate(500, per=60)).columns()
    assert Limits(rate=rates[0]).columns()["rates"] == [tokens]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Rate(3, unit="\n"), "a unit must be a name of 1 to 100 printable characters, not '\\\\n'"),
        (lambda: Rate(3, unit=3), "a unit must be a name"),  # type: ignore[arg-type]
        (lambda: Limits(rate=Rate(3), rates=[Rate(4)]), "rate and rates exclude each other"),
        (lambda: Limits(rates=[3]), r"rates must be a list of Rate\(count, per=seconds\) or None, not \[3\]"),  # type: ignore[list-item]
        (lambda: KeyLimits(rates="3"), "rates must be a list"),  # type: ignore[arg-type]
        (lambda: Limits(rates=[Rate(3, unit="a"), Rate(4, unit="a")]), "two rates with one unit and one period"),
        (lambda: set_limit("llm", rate=Rate(3, unit="a")), r"rate is the rate without a unit: write rates=\["),
        (lambda: ask.options(units={"tokens": 0}), "units: 'tokens' must be an integer from 1 to 999,999,999, not 0"),
        (lambda: ask.options(units={"": 1}), "a unit must be a name"),
        (lambda: ask.options(units={"tokens": True}), "must be an integer"),
        (lambda: FakeJobContext().used(tokens=-1), "units: 'tokens' must be an integer from 0 to 999,999,999, not -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(made: Callable[[], Any], said: str) -> None:
    """Where it is written, before any SQL."""
    with pytest.raises(OptionError, match=said):
        made()


def test_named_units_stand_beside_the_others() -> None:
    """Each option leaves the other as it is; an empty mapping takes the named ones off."""
    both = ask.options(units=3).options(units={"tokens": 1_800})

    assert (both.call("?").units, json.loads(both.call("?").extras or "")) == (3, {"units": {"tokens": 1_800}})
    assert both.options(units={}).call("?").extras is None
    assert both.options(on_failure=False).call("?").extras == both.call("?").extras


def test_a_report_takes_the_place_of_the_one_before() -> None:
    """Also of one that is not written yet, or could not be."""
    reports = JobReports()
    job = ClaimedJob(7, 1, "default", "ask", 4, 0.0, 1, 10, 0, "{}", "{}", 0.0)
    reports.use(job, {"tokens": 5})
    reports.use(job, {"tokens": 6})
    first = reports.take_use()
    assert first == (7, 1, '{"tokens": [null, 6]}')
    assert reports.take_use() is None

    reports.use(job, {"tokens": 9})
    reports.put_back_use(first)
    assert reports.take_use() == (7, 1, '{"tokens": [null, 9]}')
    reports.use(job, {"tokens": 4})
    assert reports.take_use() == (7, 1, '{"tokens": [9, 4]}')


def test_a_tests_context_has_what_was_used() -> None:
    """So a unit test of a handler can look at it."""
    ctx = FakeJobContext()
    ctx.used(tokens=1_834)
    assert ctx.units == {"tokens": 1_834}


@task(registry=Registry(), name="ask")
def ask(text: str) -> None: ...
