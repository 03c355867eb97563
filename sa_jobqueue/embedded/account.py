"""The user that runs a server: its folders, and programs run in its name. PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import EmbeddedUnavailable
from .spec import ServerSpec
from .wheel import programs_of

if sys.platform != "win32":
    import pwd

__all__ = ["account_of", "make_folder", "run"]


class _Account(NamedTuple):
    uid: int
    gid: int
    name: str


def run(spec: ServerSpec, program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs as the server's user, with nothing of the caller's environment."""
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        account = account_of(spec)
        as_user = {"user": account.uid, "group": account.gid, "extra_groups": ()}
    # The output goes to a file, because a pipe would stay open as long as the server that `pg_ctl` leaves behind.
    with open(spec.directory / "output", "w+b") as output:
        result = subprocess.run(
            [str(programs_of(spec) / program), *arguments],
            cwd=spec.home,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
            check=False,
            **as_user,
        )
        if result.returncode != 0:
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
            raise EmbeddedUnavailable(f"the embedded PostgreSQL's {program} failed ({result.returncode}): {said}")


def make_folder(spec: ServerSpec, folder: Path) -> None:
    """Make a folder that only the server's user can enter. All folders above stay as they are."""
    if not folder.exists():
        folder.mkdir(mode=0o700)
    account = account_of(spec)
    found = folder.lstat()
    if os.geteuid() == 0 and found.st_uid == 0 and stat.S_ISDIR(found.st_mode):
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
        found = folder.lstat()
    if found.st_uid != account.uid or not stat.S_ISDIR(found.st_mode):
        raise EmbeddedUnavailable(f"{folder} belongs to another user; expected a folder of the user {account.name!r}")
    for parent in folder.parents:
        above = parent.stat()
        if os.geteuid() == 0 and not above.st_mode & stat.S_IXOTH and above.st_uid != account.uid:
            raise EmbeddedUnavailable(
                f"{parent} is closed to others, so the user {account.name!r}, who runs the server on behalf of root, "
                "cannot reach it: set SA_JOBQUEUE_EMBEDDED_DIR to a folder outside"
            )


def account_of(spec: ServerSpec) -> _Account:
    """The caller. For root: the owner of the server's folder, else the user postgres, else the user nobody."""
    uid = os.geteuid()
    if uid == 0 and spec.home.exists():
        uid = spec.home.stat().st_uid
    found = (_look_up("postgres") or _look_up("nobody")) if uid == 0 else _look_up(uid)
    if found is None:
        raise EmbeddedUnavailable(f"PostgreSQL needs a user with a name, and the user id {uid} has none")
    return found


def _look_up(user: int | str) -> _Account | None:
    try:
        found = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        return None
    return _Account(found.pw_uid, found.pw_gid, found.pw_name)
