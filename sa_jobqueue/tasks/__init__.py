"""Tasks: handlers with a name, and the rules for their jobs.

>>> from datetime import timedelta
>>> @task(queue="mail", max_attempts=5, name="shop.send_receipt")
... def send_receipt(order_id: int) -> str:
...     return f"receipt for {order_id}"
>>> send_receipt(7)
'receipt for 7'
>>> send_receipt.options(priority=9, delay=timedelta(hours=1)).call(7)
Call(task='shop.send_receipt', args='{"order_id":7}', queue='mail', priority=9, ...)

A row names a registered task. A worker never imports anything because of the name in a row.
"""

from __future__ import annotations

from .decorator import task
from .registry import Registry, TaskName, default_registry
from .tasks import AnyTask, Task

__all__ = ["AnyTask", "Registry", "Task", "TaskName", "default_registry", "task"]
