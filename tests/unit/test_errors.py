"""Errors travel: a pool of processes brings them back from where they were raised."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from sa_jobqueue import JobEnd, JobStatus
from sa_jobqueue.errors import JobQueueError, OptionError, SchemaError, WaitTimeout

ERRORS: list[JobQueueError] = [
    OptionError("no such option"),
    SchemaError(found=None, needed=1),
    SchemaError(found=3, needed=1, schema="q", database="shop"),
    SchemaError(found=None, needed=1, others=["a", "shop's queue"]),
    WaitTimeout([7], 0.5),
    WaitTimeout([7, 9], 2, ended=[JobEnd(8, "a", JobStatus.COMPLETED, 3, None)]),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("sent", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_error_comes_back_with_what_it_says(
    error: JobQueueError, sent: Callable[[JobQueueError], JobQueueError]
) -> None:
    """Its message, its attributes and what was noted on it. One that could not be made again would break the whole pool."""
    error.add_note("noted")
    back = sent(error)
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
