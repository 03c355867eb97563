"""Whether worker processes are alive: `alive`, for the probes of Kubernetes, Docker and systemd.

A worker updates its row at least every 20 s. A worker that is frozen or cut off from the database does not, although its
process still exists.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
            help="The PID of a process of this machine, which may be a supervisor; or HOST:PID; or the worker's id. "
            "Default: all workers of this machine or container.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Report by the exit code whether worker processes are alive, for probes.

    0: the database has recently heard from all of them. 1: not from some of them, or there are none. 2: the database does not
    answer; since this is not the workers' fault, a probe should pass.

    sa-jobqueue alive
    sa-jobqueue alive 4711
    """
    with raw_transaction(config) as connection:
        from psycopg.rows import namedtuple_row

        cursor = connection.cursor(row_factory=namedtuple_row)
        rows: list[Any] = cursor.execute(WORKERS.format(schema=quote(config.schema)).encode()).fetchall()
    # The oldest come first; a container that is started again has the same process ids, so that only its last row counts.
    found = {(row.host, row.pid): row for row in rows if _is_meant(row, worker) and _may_run(row)}
    for row in found.values():
        state = "stale" if row.stale else "live"
        say(f"worker {str(row.id)[:8]} ({cleaned(row.host)}:{row.pid}) was seen {age(row.unseen)} ago: {state}")
    if not found:
        say(f"{_missing(worker)}; `sa-jobqueue workers` lists all workers")
    if not found or any(row.stale for row in found.values()):
        raise typer.Exit(1)


def _missing(worker: str | None) -> str:
    host = cleaned(socket.gethostname())
    if worker is None:
        return f"there is no worker on {host}"
    if _PID.fullmatch(worker):
        return f"on {host} the process {worker} is neither a worker nor a supervisor of workers"
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


def _may_run(row: Any) -> bool:
    """Whether the worker's process may still run: not if this machine has no such process, or only a younger process."""
    if not _is_here(row):
        return True
    process = _process(row.pid)
    return process is not None and (process.age is None or process.age >= row.unseen)


class _Process(NamedTuple):
    """A process of this machine: its parent, and the seconds that it has run; None if unknown."""

    parent: int | None = None
    age: float | None = None


def _process(pid: int) -> _Process | None:
    """None if it does not exist."""
    try:
        if Path("/proc/self/stat").exists():
            # After the name, which may contain anything: state, parent, ..., start in ticks since the machine's start.
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            uptime = float(Path("/proc/uptime").read_text().split()[0])
            return None if stat[0] == "Z" else _Process(int(stat[1]), uptime - int(stat[19]) / _TICKS)
        if sys.platform != "win32":
            os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        pass
    return _Process()
