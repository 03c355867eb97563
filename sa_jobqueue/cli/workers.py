"""The worker processes: `workers`."""

from __future__ import annotations

from typing import Any

from sa_jobqueue.statements.overview import list_workers
from sa_jobqueue.words import size

from .config import Config
from .options import Json
from .output import Column, age, duration, note, print_json, print_table
from .place import transaction

__all__ = ["workers"]


def workers(config: Config, *, json: Json = False) -> None:
    """List the worker processes, with their memory and how long their event loops lately took to answer. With --json also the version of
    the schema that each is made for, and its lease.

    One that was not seen for 60 s, or has let a lease run out, is stale: killed, frozen, or cut off. One that claims less because the
    database is over a threshold (work --max-lock-waits and others) is held back.
    """
    with transaction(config) as connection:
        rows = connection.execute(list_workers()).mappings().all()
    if json:
        print_json([dict(row) for row in rows])
        return
    if not rows:
        note("no workers; start one with `sa-jobqueue work`")
        return
    print_table(
        [
            Column("worker", wide=True),
            Column("queues", wide=True),
            Column("running", "right"),
            Column("slots", "right"),
            Column("memory", "right", optional=True),
            Column("loop lag", "right", optional=True),
            Column("up", "right"),
            Column("seen", "right"),
            Column("state"),
        ],
        [
            (
                f"{row.host}:{row.pid}", " ".join(row.queues), row.running, row.concurrency,
                "" if row.memory is None else size(row.memory),
                "" if row.loop_lag is None else duration(row.loop_lag),
                age(row.age, short=True), f"{age(row.unseen, short=True)} ago", _state(row),
            )
            for row in rows
        ],
        styles=["" if _state(row) == "live" else "yellow" for row in rows],
    )  # fmt: skip
    for row in rows:
        if row.pressure and not row.stale:
            note(f"{row.host}:{row.pid} is held back: {row.pressure}")


def _state(row: Any) -> str:
    if row.stale:
        return "stale"
    return "held back" if row.pressure else "live"
