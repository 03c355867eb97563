"""The worker: claims jobs, runs their handlers, writes their outcomes.

`worker.Worker` is the public class; the other modules are its services.
"""

from .process.inside import Ending
from .tally import QueueState, WorkerState
from .worker import Worker

__all__ = ["Ending", "QueueState", "Worker", "WorkerState"]
