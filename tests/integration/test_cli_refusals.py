"""What a command refuses, and help: wrong URLs, options and files are one line each, and no password is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sa_jobqueue.cli import tree
from tests.support.cli import invoke, output, refused

NOWHERE = "postgresql://me:secret@127.0.0.1:1/nowhere"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (NOWHERE, "the database does not answer: "),
        ("postgresql://me:secret@127.0.0.1:1/nowhere?nonsense=1", "nonsense"),
        ("mysql://me:secret@db/shop", "is not a PostgreSQL URL"),
        ("postgresql://me:secret@db:port/shop", "is not a database URL"),
        ("me:secret@db", "has no scheme: expected postgresql://host:port/database, with user and password before"),
    ],
)
def test_a_wrong_url_is_refused(url: str, reason: str) -> None:
    """In one line with the reason, and without the password."""
    line = refused("list", url=url)
    assert reason in line
    assert "secret" not in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("nope",),
        ("list", "--nope"),
        ("list", NOWHERE),
        ("show", "seven"),
        ("show",),
        ("embedded", "nope"),
        ("list", "--schema", ""),
        ("list", "--log-level", "loud"),
    ],
)
def test_a_wrong_option_is_refused(arguments: tuple[str, ...]) -> None:
    """In one line, which does not repeat the URL."""
    assert "secret" not in refused(*arguments, url=NOWHERE)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("option", "Invalid value for '--lease': "),
        ("environment", "Invalid value for SA_JOBQUEUE_LEASE: "),
        ("pyproject", "Invalid value for lease in [tool.sa_jobqueue] of pyproject.toml: "),
    ],
)
def test_a_wrong_value_is_named_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, place: str
) -> None:
    """The option, the environment variable, or the key in pyproject.toml."""
    monkeypatch.chdir(tmp_path)
    if said == "pyproject":
        (tmp_path / "pyproject.toml").write_text("[tool.sa_jobqueue]\nlease = 'soon'\n")
    option = ["--lease", "soon"] if said == "option" else []
    line = refused("work", *option, env={"SA_JOBQUEUE_LEASE": "soon"} if said == "environment" else {})
    assert line.startswith(f"error: {place}")
    assert "'soon'" in line


@pytest.mark.parametrize("command", ["show", "retry", "cancel", "discard", "prune"])
@pytest.mark.parametrize("number", [str(2**63), "9" * 30, "seven"])
def test_a_wrong_job_id_is_refused(command: str, number: str) -> None:
    """The message shows what was given; no id has more than 63 bits."""
    assert f"{number!r} is not a job's id" in refused(command, number, url=NOWHERE)


@pytest.mark.parametrize(
    "command", [("list", "--workflow"), ("workflow", "show"), ("workflow", "cancel")], ids=" ".join
)
def test_a_wrong_workflow_id_is_refused_as_a_workflow_s(command: tuple[str, ...]) -> None:
    """The message says what is expected."""
    assert "'abc' is not a workflow's id: expected a whole number" in refused(*command, "abc", url=NOWHERE)


def test_a_limit_that_no_statement_takes_is_refused_at_the_option() -> None:
    """With its bound, before the database is asked."""
    assert "'--limit' / '-n': " in (line := refused("cancel", "--all", "--limit", "9" * 20, url=NOWHERE))
    assert "1000000000" in line


def test_a_file_in_place_of_a_module_is_answered_with_the_module() -> None:
    """`--app shop.py` is what a newcomer tries first."""
    line = refused("enqueue", "a", "--app", "shop.py", url=NOWHERE)
    assert "expected a module, not its file: --app shop, or for a Worker or Registry in it --app shop:worker" in line
    assert "--app src.shop," in refused("enqueue", "a", "--app", "src/shop.py", url=NOWHERE)


def test_pin_is_refused_where_the_system_cannot_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert refused("work", "--pin", url=NOWHERE).startswith("error: --pin: processes cannot be kept on a core on ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[tool.sa_jobqueue]\ndatabse_url = 'x'\n", "unknown key 'databse_url'; known are app,"),
        ("[tool.sa_jobqueue]\nschema = ['a']\n", "schema in [tool.sa_jobqueue] must be one value"),
        ("[tool]\nsa_jobqueue = 7\n", "must be a table"),
        ("[tool.sa_jobqueue\n", "cannot be read"),
    ],
)
def test_a_wrong_pyproject_is_one_line_and_help_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, reason: str
) -> None:
    """The line names the file."""
    (tmp_path / "pyproject.toml").write_text(content)
    monkeypatch.chdir(tmp_path)
    line = refused("list", url=NOWHERE)
    assert reason in line
    assert "pyproject.toml" in line
    assert invoke("list", "--help").exit_code == 0


def test_the_help_of_work_has_examples() -> None:
    """Each on a line of its own, to be copied."""
    lines = [line.strip() for line in invoke("work", "--help").stdout.splitlines()]
    assert "sa-jobqueue work --app shop.tasks" in lines
    assert "sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2" in lines


def test_help_does_not_show_the_password_of_pyproject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help shows defaults, and what pyproject.toml says is one."""
    (tmp_path / "pyproject.toml").write_text(f'[tool.sa_jobqueue]\ndatabase_url = "{NOWHERE}"\nschema = "jobs"\n')
    monkeypatch.chdir(tmp_path)
    shown = invoke("list", "--help").stdout
    assert "jobs" in shown
    assert "secret" not in shown


def test_a_table_in_pyproject_is_a_repeated_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`app` as one text, a list, or with commas; `queue = {mail = 10}` for `--queue mail=10`."""
    monkeypatch.chdir(tmp_path)
    for written in ('"gone_a, gone_b"', '["gone_a", "gone_b"]'):
        (tmp_path / "pyproject.toml").write_text(f"[tool.sa_jobqueue]\napp = {written}\nqueue = {{ mail = 10 }}\n")
        assert "--app gone_a: there is no module" in refused("enqueue", "a", url=NOWHERE)
    assert "mail=10" in invoke("work", "--help").stdout


def test_an_unexpected_error_keeps_its_traceback_but_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of ours is not made into one line."""

    def broken(**options: object) -> None:
        raise RuntimeError(f"a bug at {NOWHERE}")

    monkeypatch.setattr(tree, "app", broken)
    with pytest.raises(SystemExit) as ended:
        tree.run()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "Traceback" in said
    assert "a bug at postgresql://me:***@127.0.0.1:1/nowhere" in said


@pytest.mark.parametrize("arguments", [(), ("list", "--help"), ("embedded", "path")])
def test_a_terminal_of_no_width_is_one_of_unknown_width(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Some supervisors set COLUMNS=0; every command acts, and says what it did, all the same."""
    env = {"SA_JOBQUEUE_EMBEDDED_DIR": str(tmp_path)}
    assert output(*arguments, url=NOWHERE, env=env | {"COLUMNS": "0"}) == output(
        *arguments, url=NOWHERE, env=env | {"COLUMNS": "80"}
    )


@pytest.mark.parametrize("option", ["--grace", "--lease", "--max-snapshot-age"])
def test_a_time_with_a_unit_is_answered_with_the_unit(option: str) -> None:
    """Other commands take 10m; the settings of a worker are seconds."""
    line = refused("work", option, "10m", url=NOWHERE)
    assert f"Invalid value for '{option}': expected a number of seconds, not '10m'" in line
