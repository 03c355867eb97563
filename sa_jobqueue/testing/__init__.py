"""For tests of applications: jobs are run where the test is, in its own session, which it may roll back.

>>> from sqlalchemy.orm import Session
>>> def test_a_receipt_is_sent(session: Session) -> None:
...     order = buy(session)
...     assert_enqueued(session, "shop.send_receipt", order_id=order.id)
...     drain(session)
...     assert order.receipt_sent_at is not None

With an `AsyncSession` the same functions are awaited. The pytest fixture `jobqueue` has them as its methods.
"""

from ..worker.running.effects import Effects, RowChange
from .clock import move_clock
from .contexts import FakeAsyncJobContext, FakeJobContext, check_upcasts
from .drain import check_replay, drain, effects, work_one
from .enqueued import assert_enqueued, assert_not_enqueued, enqueued
from .explain import Explanation, Unrun, explain
from .inline import Drained, Ran
from .queue import JobQueue
from .replay import Repeated, Replay
from .steps import crash_after, signal

__all__ = [
    "Drained",
    "Effects",
    "Explanation",
    "FakeAsyncJobContext",
    "FakeJobContext",
    "JobQueue",
    "Ran",
    "Repeated",
    "Replay",
    "RowChange",
    "Unrun",
    "assert_enqueued",
    "assert_not_enqueued",
    "check_replay",
    "check_upcasts",
    "crash_after",
    "drain",
    "effects",
    "enqueued",
    "explain",
    "move_clock",
    "signal",
    "work_one",
]
