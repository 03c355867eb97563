"""A worker process that has a supervisor: it drains when that is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from ...log import get_logger

__all__ = ["drain_with_supervisor"]

logger = get_logger(__name__)


def drain_with_supervisor(drain: Callable[[], None]) -> None:
    """In a worker process: call `drain`, on a thread of its own, when the supervisor is gone and stdin ends with it.

    What handlers start gets /dev/null for its stdin, not the pipe.
    """
    # One that a thread of the supervisor has started has inherited that it takes no signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    pipe = os.dup(0)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)

    def deadline() -> None:
        while os.read(pipe, 1):
            pass
        try:
            logger.warning("the supervisor is gone: finishing what is running")
        finally:  # whatever a filter or a handler of logs raises
            drain()

    threading.Thread(target=deadline, name="sa-jobqueue supervisor watch", daemon=True).start()
