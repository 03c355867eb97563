"""Workflows: graphs of jobs that wait for each other, added to a session as an object.

>>> from collections.abc import Sequence
>>> from sa_jobqueue import Registry, Workflow, task
>>> registry = Registry()
>>> @task(record=True, registry=registry, name="count")
... def count(page: str) -> int:
...     return len(page.split())
>>> @task(registry=registry, name="add_up")
... def add_up(parts: Sequence[int]) -> None: ...
>>> report = Workflow("report")
>>> counts = [report.add(count, page) for page in ("a b", "c")]
>>> report.gather(counts, add_up)
<Node 3 'add_up'>
"""

from .builder import Addition, Batch, Workflow
from .graph import Join, Node

__all__ = ["Addition", "Batch", "Join", "Node", "Workflow"]
