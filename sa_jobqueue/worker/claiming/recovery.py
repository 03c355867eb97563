"""How the next round writes and claims after a statement of this round has failed. Pure: no connection, no clock."""

from __future__ import annotations

from enum import Enum

from sqlalchemy.exc import DBAPIError

from ...sql.claims import Fault, fault_of


class Mode(Enum):
    """How a round writes outcomes and claims. Each mode costs more round trips than the mode before it, and fails for fewer reasons.

    After a failure the claimer goes on to the next mode. It goes back to the first mode when a claim has succeeded, and when it
    gives up its connection.
    """

    TOGETHER = "outcomes and claim in one transaction, nearly always in one statement"
    APART = "outcomes first, in a transaction of their own; then the claim"
    WITHOUT_PAYLOAD = "as APART, and the claim returns no arguments and no meta"
    BISECTING = "as APART, and the claim is halved where it fails, until each job that cannot be claimed is alone"


def after_failure(mode: Mode, fault: Fault, *, wrote: bool, too_much: bool) -> Mode | None:
    """The mode of the next round, after a transaction failed in this `mode`. None: give the connection up.

    `wrote`: the transaction had outcomes in it, so they may be to blame, or the claim. `too_much`: the text of some job's
    arguments or meta may have been more than the server can make in its time and its memory.
    """
    if wrote:
        if too_much and fault is not Fault.ROW:  # no value of an outcome needs so much
            return Mode.WITHOUT_PAYLOAD
        return None if fault is Fault.AWAY else Mode.APART
    if mode is Mode.BISECTING:  # it has dealt with what jobs can be to blame for
        return None
    if too_much and mode is not Mode.WITHOUT_PAYLOAD:
        return Mode.WITHOUT_PAYLOAD
    if fault in {Fault.ROW, Fault.REFUSED} or (too_much and fault is Fault.LATE):
        return Mode.BISECTING
    return None


def may_be_a_jobs(error: BaseException) -> bool:
    """Whether a write may have failed because of one of its jobs."""
    return isinstance(error, DBAPIError) and fault_of(error) in {Fault.ROW, Fault.REFUSED}
