"""Waiting for the end of jobs, in any program that has an engine: `wait_for`.

from sa_jobqueue import wait_for

end = wait_for(engine, job.id, timeout=10)
"""

from .listener import wait_for

__all__ = ["wait_for"]
