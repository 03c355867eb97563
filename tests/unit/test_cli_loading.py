"""What a command loads: only what it needs, because each start of a command waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from sa_jobqueue.cli.tree import app
from tests.support import command_table


def loaded(*arguments: str) -> set[str]:
    """The modules that a process has loaded at the end of a command."""
    program = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))\n"
        "from sa_jobqueue.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert "sa_jobqueue.cli.tree" in done.stderr
    return set(done.stderr.splitlines())


def test_the_table_of_commands_is_that_of_the_commands() -> None:
    """`python -m tests.support.command_table` writes it: what help says of each, and the keys of pyproject.toml."""
    assert command_table.PAGE.read_text() == command_table.table()


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("schedule",), ("nope",)], ids=" ".join)
def test_what_calls_no_command_loads_none(arguments: tuple[str, ...]) -> None:
    """Nor what commands are made with. A recent Typer reads arguments with pydantic."""
    modules = loaded(*arguments)
    assert modules.isdisjoint({"sqlalchemy", "psycopg", "alembic"})
    assert not any(name.startswith(("sa_jobqueue.worker", "sa_jobqueue.models")) for name in modules)
    if arguments[0].startswith("--"):
        assert "pydantic" not in modules


def test_alive_needs_no_sqlalchemy(database_url: str) -> None:
    """A probe is started every few seconds; loading SQLAlchemy takes longer than all that it does."""
    modules = loaded("alive", "--database-url", database_url)
    assert "psycopg" in modules
    assert "sqlalchemy" not in modules


def test_a_command_loads_no_other() -> None:
    """`list` needs no worker, and none of the large commands."""
    modules = loaded("list", "--help")
    assert "sa_jobqueue.cli.jobs" in modules
    rooms = ("worker", "doctor", "bench", "demo", "dashboard", "testing", "cli.work", "cli.doctor", "cli.top")
    assert [name for name in modules if name.startswith(tuple(f"sa_jobqueue.{room}" for room in rooms))] == []


def test_a_group_lists_what_it_has_without_loading_it() -> None:
    """The names, which completion and help show; a command is loaded when it is taken out."""
    root = typer.main.get_command(app)
    context = typer.Context(root)  # type: ignore[arg-type]
    shown = {name: root.get_command(context, name) for name in root.list_commands(context)}  # type: ignore[attr-defined]
    assert list(shown) == list(root.commands)  # type: ignore[attr-defined]
    assert shown["list"].params == []
    assert "limit" in {option.name for option in root.commands["list"].params}  # type: ignore[attr-defined]
    assert shown["list"].help == root.commands["list"].help.split("\n\n")[0]  # type: ignore[attr-defined]
