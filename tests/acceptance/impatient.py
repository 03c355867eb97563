"""The same application in a worker that loses patience with a blocked event loop sooner."""

from sa_jobqueue.worker import watchdog
from sa_jobqueue.worker.running import timeouts
from tests.acceptance.app import registry

__all__ = ["registry"]

watchdog._EVERY, timeouts._PATIENCE = 0.2, 1.0
