"""The same application in a worker that loses patience with a blocked event loop sooner."""

from sa_jobqueue.worker import watchdog
from tests.acceptance.app import registry

__all__ = ["registry"]

watchdog._EVERY, watchdog._PATIENCE = 0.2, 1.0
