"""How the next round writes and claims after a failure, as a table."""

from __future__ import annotations

from itertools import product

import pytest
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.sql.claims import Fault
from sa_jobqueue.worker.claiming.connection import said_by_database
from sa_jobqueue.worker.claiming.recovery import Mode, after_failure

TOGETHER, APART, WITHOUT_PAYLOAD, BISECTING = Mode
GIVE_UP = None


@pytest.mark.parametrize(
    ("fault", "too_much", "next_mode"),
    [
        (Fault.ROW, True, APART),  # a bad value: of an outcome, or of a job that was to be claimed
        (Fault.REFUSED, False, APART),
        (Fault.LATE, False, APART),  # a lock
        (Fault.LATE, True, WITHOUT_PAYLOAD),  # a statement_timeout
        (Fault.AWAY, True, WITHOUT_PAYLOAD),  # no memory left
        (Fault.AWAY, False, GIVE_UP),
    ],
)
def test_when_outcomes_and_claim_fail_together_the_next_round_writes_first(
    fault: Fault, too_much: bool, next_mode: Mode | None
) -> None:
    """Either may be to blame. Only the claim can have needed too much."""
    assert after_failure(TOGETHER, fault, wrote=True, too_much=too_much) is next_mode


@pytest.mark.parametrize(
    ("mode", "fault", "too_much", "next_mode"),
    [
        (TOGETHER, Fault.ROW, True, WITHOUT_PAYLOAD),
        (TOGETHER, Fault.REFUSED, False, BISECTING),
        (TOGETHER, Fault.LATE, True, WITHOUT_PAYLOAD),
        (TOGETHER, Fault.LATE, False, GIVE_UP),
        (TOGETHER, Fault.AWAY, True, WITHOUT_PAYLOAD),
        (TOGETHER, Fault.AWAY, False, GIVE_UP),
        (APART, Fault.ROW, True, WITHOUT_PAYLOAD),
        (APART, Fault.REFUSED, False, BISECTING),
        (APART, Fault.LATE, True, WITHOUT_PAYLOAD),
        (APART, Fault.LATE, False, GIVE_UP),
        (APART, Fault.AWAY, True, WITHOUT_PAYLOAD),
        (APART, Fault.AWAY, False, GIVE_UP),
        (WITHOUT_PAYLOAD, Fault.ROW, True, BISECTING),
        (WITHOUT_PAYLOAD, Fault.REFUSED, False, BISECTING),
        (WITHOUT_PAYLOAD, Fault.LATE, True, BISECTING),  # a trigger that takes too long for one job, perhaps
        (WITHOUT_PAYLOAD, Fault.LATE, False, GIVE_UP),
        (WITHOUT_PAYLOAD, Fault.AWAY, True, GIVE_UP),
        (WITHOUT_PAYLOAD, Fault.AWAY, False, GIVE_UP),
        (BISECTING, Fault.ROW, True, GIVE_UP),
        (BISECTING, Fault.REFUSED, False, GIVE_UP),
        (BISECTING, Fault.LATE, True, GIVE_UP),
        (BISECTING, Fault.LATE, False, GIVE_UP),
        (BISECTING, Fault.AWAY, True, GIVE_UP),
        (BISECTING, Fault.AWAY, False, GIVE_UP),
    ],
)
def test_when_a_claim_fails_alone_the_next_one_leaves_out_what_may_be_to_blame(
    mode: Mode, fault: Fault, too_much: bool, next_mode: Mode | None
) -> None:
    """First the payload, then the jobs that cannot be claimed."""
    assert after_failure(mode, fault, wrote=False, too_much=too_much) is next_mode


@pytest.mark.parametrize(("fault", "too_much"), list(product(Fault, (False, True))))
def test_failures_in_a_row_end_with_a_new_connection(fault: Fault, too_much: bool) -> None:
    """Each mode leads to a later one: no error is answered by the same round for ever."""
    mode: Mode | None = TOGETHER
    modes = list(Mode)
    while mode is not None:
        following = after_failure(mode, fault, wrote=mode is TOGETHER, too_much=too_much)
        assert following is None or modes.index(following) > modes.index(mode)
        mode = following


def test_the_log_of_a_failed_claim_leaves_out_the_functions_of_the_queue() -> None:
    """The server names the statement in each function that it was in."""
    said = 'canceling statement due to statement timeout\nCONTEXT:  SQL statement "SELECT ..."\nPL/pgSQL function sa_jobqueue.pick_limited(text[]) line 325'
    error = DBAPIError("SELECT ...", {}, Exception(said))
    assert said_by_database(error) == "canceling statement due to statement timeout"
    assert said_by_database(ValueError("no rows\nDETAIL: none")) == "no rows\nDETAIL: none"
