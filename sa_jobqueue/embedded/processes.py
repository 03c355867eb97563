"""The server's process, and the files that hold its number."""

from __future__ import annotations

import os
from pathlib import Path

from .spec import ServerSpec

__all__ = ["drop_misleading_pid_files", "postmaster_of"]


def postmaster_of(spec: ServerSpec) -> int | None:
    """The process number of the running server. After a reboot the pid file may name any process."""
    pid = _first_number(spec.data / "postmaster.pid")
    return pid if pid is not None and _works_in(spec.data, pid) else None


def drop_misleading_pid_files(spec: ServerSpec) -> None:
    """Remove stale pid files that would keep the server from starting: their number belongs to another process by now, or
    they hold no number because a crash or a full disk came before it was written.

    PostgreSQL recognises all other stale files itself, and its checks of shared memory need them.
    """
    for file in (spec.data / "postmaster.pid", spec.socket_directory / ".s.PGSQL.5432.lock"):
        if file.exists() and _misleads(file, spec.data):
            file.unlink(missing_ok=True)


def _misleads(file: Path, data: Path) -> bool:
    pid = _first_number(file)
    if pid is None:  # so it is for a moment while a server starts, and the command that started it may have been killed
        import psutil  # comes with the extra `embedded`

        return not any(_works_in(data, one) for one in psutil.pids())
    return _is_alive(pid) and not _works_in(data, pid)


def _works_in(data: Path, pid: int) -> bool:
    """Whether this process works in the data directory, as its server does."""
    import psutil  # comes with the extra `embedded`

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and data.samefile(process.cwd())
    except (psutil.Error, OSError):
        return False


def _first_number(file: Path) -> int | None:
    try:
        return int(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
