"""Jobs whose arguments are new objects: the flush that gives the objects their keys writes the jobs, too.

By public events of the Session alone:

1. Before the flush, a job with an object that has no key is set aside. An object that the flush will not write is refused here, so
   before anything is written.
2. After the flush the objects have their keys. The jobs get them as arguments, and are inserted by one statement, in the same
   transaction.
3. A job that another object refers to cannot wait for that: it is inserted with the flush, and completed by an UPDATE after it.

A rollback makes jobs and objects what they were, so that both can be added again.
"""

from __future__ import annotations

from .listeners import wait_for_keys

__all__ = ["wait_for_keys"]
