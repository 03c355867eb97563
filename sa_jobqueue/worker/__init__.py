"""The worker: claims jobs, runs their handlers, writes what came of them.

`worker.Worker` is the front; the other modules are its services, each on its own.
"""

from .process.inside import Ending
from .tally import QueueState, WorkerState
from .worker import Worker

__all__ = ["Ending", "QueueState", "Worker", "WorkerState"]
