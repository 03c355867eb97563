"""The worker processes: `workers`, and `drain`, which asks some to end."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
import typer

from sa_jobqueue.statements import drain_workers
from sa_jobqueue.statements.chosen import is_worker
from sa_jobqueue.statements.overview import list_workers
from sa_jobqueue.words import size

from .config import Config
from .options import Json
from .output import Column, age, duration, note, print_json, print_table, say
from .place import transaction

__all__ = ["drain", "workers"]


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


def drain(
    config: Config,
    names: Annotated[
        list[str],
        typer.Argument(metavar="WORKER", help="HOST:PID as `workers` shows it, or a HOST: all of its workers."),
    ],
    *,
    json: Json = False,
) -> None:
    """Ask worker processes to drain, as SIGTERM does, from anywhere: they claim no more, let running jobs finish, and end.

    A worker hears of it within 20 s. What has started it, such as `work --processes` or systemd, may start another in its place.

    sa-jobqueue drain web-1:4711
    sa-jobqueue drain web-1
    """
    with transaction(config) as connection:
        asked = connection.scalars(drain_workers(sa.or_(*map(is_worker, names)))).all()
    if json:
        print_json({"action": "drained", "workers": asked})
    elif asked:
        say(f"asked {len(asked)} worker{'' if len(asked) == 1 else 's'} to drain")
    else:
        note("no such worker, or each was asked before; `sa-jobqueue workers` lists them")
    if not asked:
        raise typer.Exit(1)


def _state(row: Any) -> str:
    if row.stale:
        return "stale"
    if row.drain_requested_at is not None:
        return "draining"
    return "held back" if row.pressure else "live"
