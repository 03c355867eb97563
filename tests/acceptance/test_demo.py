"""`sa-jobqueue demo`: the main job from enqueueing to the proof, in a database where other things live too."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support import pooler
from tests.support.cli import refused
from tests.support.commands import run_command, start_command
from tests.support.nightly import nightly
from tests.support.waiting import wait_until

SCHEMA = "sa_jobqueue_demo"


def modules(root: Path, number_of_files: int) -> Path:
    """A folder with this number of modules that parse."""
    for number in range(number_of_files):
        file = root / f"package{number % 4}" / f"module{number:02}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"import os, sys\n\nclass Thing{number}:\n" + "    def method(self): ...\n" * (number + 1))
    return root


@pytest.fixture
def database_url(database_url: str) -> str:
    """Past the pooler, behind which the demo refuses to begin."""
    return pooler.direct(database_url)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Forty modules that parse, one that does not, and one that cannot be read."""
    root = modules(tmp_path / "code", 40)
    (root / "half_saved.py").write_text("def f(:\n")
    (root / "gone.py").symlink_to(root / "nowhere.py")
    return root


def demo(url: str, tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command("demo", f"--path={tree}", *options, url=url)


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))


def row(output: str, name: str) -> list[str]:
    """The cells beside `name` in one of the report's tables."""
    found = re.search(rf"^ +{re.escape(name)}  +(.*?) *$", output, re.MULTILINE)
    assert found, f"{name!r} is not in the report:\n{output}"
    return re.split(r"  +", found[1])


@pytest.mark.parametrize("options", [(), *nightly(("--async",))], ids=["def", "async def"])
@pytest.mark.usefixtures("measured")
def test_the_demo_kills_a_worker_and_proves_that_nothing_is_lost(
    database_url: str, tree: Path, options: tuple[str, ...]
) -> None:
    """The report says what happened: the kill, the rescue, the retries, the failures with their reasons, the proof."""
    result = demo(database_url, tree, *options)

    said = result.stdout
    assert result.returncode == 0, said + result.stderr
    assert re.search(r"worker \d+ is killed with SIGKILL, [1-9]\d* jobs? in hand; worker \d+ takes its place", said)
    assert re.search(r"jobs? rescued, \d\.\d s after the kill", said)
    assert re.match(r"43 in \d+\.\d s: \d+ per second", row(said, "jobs")[0])
    assert int(row(said, "rescues")[0].split(":")[0]) >= 1
    assert re.search(r"\b5 after FileNotFoundError", row(said, "retries")[0])
    assert row(said, "failures") == ["3"]
    assert row(said, "half_saved.py")[0].startswith("SyntaxError: ")
    assert row(said, "demo/broken.py.txt")[0].startswith("SyntaxError: ")
    assert row(said, "gone.py")[0].startswith("FileNotFoundError: ")
    assert row(said, "files with exactly one result") == ["43", "43", "same"]
    assert row(said, "imports") == ["80", "80", "same"]
    assert "DIFFERENT" not in said
    assert "Nothing was lost, and nothing was done twice." in said
    assert "Traceback" not in result.stderr


@pytest.mark.nightly
def test_the_demo_can_be_repeated_and_leaves_alone_what_is_not_its_own(database_url: str, tmp_path: Path) -> None:
    """The user's own jobs wait where they were, and the second run begins from the start."""
    modules(tmp_path, 1)
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task, queue) VALUES ('shop.send', 'index')")
        connection.execute("CREATE TABLE module (id int)")

    for _ in range(2):
        result = demo(database_url, tmp_path, "--processes=1")
        assert result.returncode == 0, result.stdout + result.stderr
        assert row(result.stdout, "files") == ["2", "2", "same"]

    with connect(database_url) as connection:
        assert connection.execute("SELECT task, status FROM sa_jobqueue.job").fetchall() == [("shop.send", "queued")]
        assert connection.execute("SELECT count(*) FROM module").fetchone() == (0,)


#: A wrong result, and a second one.
TAMPERING = [
    f"UPDATE {SCHEMA}.module SET lines = lines + 1 WHERE id = (SELECT min(id) FROM {SCHEMA}.module)",
    f"INSERT INTO {SCHEMA}.module (file_id, lines) SELECT file_id, 0 FROM {SCHEMA}.module ORDER BY id LIMIT 1",
]


@pytest.mark.nightly
def test_a_worker_is_killed_only_when_it_is_known_and_the_proof_fails_when_a_result_is_changed(
    database_url: str, tmp_path: Path
) -> None:
    """A worker claims jobs before its row is written; here the row has to wait, while the demo looks several times. And what is
    compared in the end is what the database says, not what the demo remembers; the exit code is 1.
    """
    looks = set[tuple[object, ...]]()
    with connect(database_url) as connection, connect(database_url) as watcher:
        watcher.autocommit = True

        def locked() -> bool:
            try:
                connection.execute(f"LOCK TABLE {SCHEMA}.worker IN SHARE MODE")  # type: ignore[arg-type]
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                connection.rollback()
                return False
            return True

        def looked_four_times() -> bool:
            # It looks at the jobs again and again; from the kill on the results are locked, too.
            looks.update(
                watcher.execute(
                    "SELECT pid, query_start FROM pg_stat_activity WHERE query LIKE '%sum(%.rescues)%'"
                    " AND datname = current_database() AND pid <> pg_backend_pid() AND EXISTS (SELECT FROM pg_locks"
                    f" WHERE relation = to_regclass('{SCHEMA}.module') AND mode = 'ShareLock' AND granted)"
                )
            )
            return len(looks) >= 4 or command.process.poll() is not None

        def meddled() -> bool:
            return all(watcher.execute(one).rowcount == 1 for one in TAMPERING)  # type: ignore[arg-type]

        with start_command("demo", "--processes=1", f"--path={modules(tmp_path, 12)}", url=database_url) as command:
            wait_until(locked)
            wait_until(looked_four_times)
            connection.rollback()
            # Half of the results are there, and the end is far: the rescue takes its three seconds.
            wait_until(meddled)
            assert command.wait(60) == 1, command.output
            said = command.output

    assert re.search(r"worker \d+ is killed with SIGKILL", said)
    assert row(said, "lines")[-1] == "DIFFERENT"
    assert row(said, "files with exactly one result")[-1] == "DIFFERENT"
    assert "The proof fails" in said
    assert re.search(r"module\d\d\.py: ", said)


def test_a_second_demo_in_the_same_database_is_refused_while_the_first_one_runs(
    database_url: str, tmp_path: Path
) -> None:
    """One line and exit code 2, and the first one goes on undisturbed."""
    modules(tmp_path, 1)
    with connect(database_url) as connection:
        connection.execute(f"SELECT pg_advisory_lock(hashtext('{SCHEMA}'))")  # type: ignore[arg-type]

        assert "another demo is running" in refused("demo", f"--path={tmp_path}", url=database_url)


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_python_files_is_one_clear_line(database_url: str, tmp_path: Path, folder: str) -> None:
    """Exit code 2, and no traceback."""
    assert refused("demo", f"--path={tmp_path / folder}", url=database_url).startswith("error: --path ")


def test_a_killed_demo_leaves_no_worker_behind(database_url: str, tmp_path: Path) -> None:
    """Its workers drain when it is gone, also after SIGKILL."""
    with start_command("demo", f"--path={modules(tmp_path, 12)}", url=database_url) as command:
        workers = wait_until(lambda: len(found := command.children()) >= 2 and found)
        command.kill()
        wait_until(lambda: not any(worker.is_running() for worker in workers), message="the end of the workers")
