"""Whether worker processes live: `alive`, for the probes of Kubernetes, Docker and systemd.

A worker writes into its row that it lives, every 20 s at the latest. A worker that is frozen or cut off from the database
does not, although its process is still there.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..rules.words import age
from ..util.schema import quote
from .config import Config
from .output import cleaned, say
from .place import raw_transaction
from .table import WORKERS

_PID = re.compile(r"\d{1,7}", re.ASCII)
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def alive(
    config: Config,
    *,
    worker: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKER",
            help="A process of this machine by its PID, which may be a supervisor's; any by HOST:PID, or by the worker's id. "
            "Without one: all workers of this machine (in a container: of this container).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tell by the exit code whether worker processes are alive, for probes.

    0: the database has heard from each lately. 1: not from one of them, or there is none. 2: the database does not answer; no worker is
    to blame for that, so a probe should pass.

    sa-jobqueue alive
    sa-jobqueue alive 4711
    """
    with raw_transaction(config) as connection:
        from psycopg.rows import namedtuple_row

        cursor = connection.cursor(row_factory=namedtuple_row)
        rows = cursor.execute(WORKERS.format(schema=quote(config.schema)).encode()).fetchall()
    found = _latest(row for row in rows if _is_meant(row, worker) and _is_there(row))
    for row in found:
        state = "stale" if row.stale else "live"
        say(f"worker {str(row.id)[:8]} ({cleaned(row.host)}:{row.pid}) was seen {age(row.unseen)} ago: {state}")
    if not found:
        say(f"{_missing(worker)}; `sa-jobqueue workers` lists all")
    if not found or any(row.stale for row in found):
        raise typer.Exit(1)


def _missing(worker: str | None) -> str:
    host = cleaned(socket.gethostname())
    if worker is None:
        return f"there is no worker on {host}"
    if _PID.fullmatch(worker):
        return f"on {host} the process {worker} is no worker, and no supervisor of one"
    return f"there is no worker {cleaned(worker)}"


def _is_meant(row: Any, worker: str | None) -> bool:
    if worker is None:
        return _is_here(row)
    if _PID.fullmatch(worker):
        process = _process(row.pid)
        return _is_here(row) and int(worker) in (row.pid, process and process.parent)
    host, colon, pid = worker.rpartition(":")
    if colon:
        return (row.host, str(row.pid)) == (host, pid)
    return len(worker) >= 8 and str(row.id).startswith(worker.lower())


def _is_here(row: Any) -> bool:
    return bool(row.host == socket.gethostname())


def _is_there(row: Any) -> bool:
    """Whether its process may still run: it does not where this machine has no such process, or only a younger one."""
    if not _is_here(row):
        return True
    process = _process(row.pid)
    return process is not None and (process.age is None or process.age >= row.unseen)


def _latest(rows: Iterable[Any]) -> list[Any]:
    """Of several rows for one place, the oldest first, the last: a container that is started again has the same process ids."""
    return list({(row.host, row.pid): row for row in rows}.values())


@dataclass(frozen=True, slots=True)
class _Process:
    """What is known of a process of this machine: its parent, and for how many seconds it has run."""

    parent: int | None = None
    age: float | None = None


def _process(pid: int) -> _Process | None:
    """None where there is none."""
    try:
        if Path("/proc/self/stat").exists():
            # Behind the name, which may hold anything: state, parent, ..., start in ticks since the machine's.
            said = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            uptime = float(Path("/proc/uptime").read_text().split()[0])
            return None if said[0] == "Z" else _Process(int(said[1]), uptime - int(said[19]) / _TICKS)
        if sys.platform != "win32":
            os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        pass
    return _Process()
