"""Writes `sa_jobqueue/cli/table.py`: what the command line says of its commands before it loads them.

python -m tests.support.command_table
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from sqlalchemy.dialects.postgresql.psycopg import dialect

from sa_jobqueue.cli import loading
from sa_jobqueue.cli.config import key_of, settings_of
from sa_jobqueue.cli.tree import app
from sa_jobqueue.sql.readings.depths import list_workers
from sa_jobqueue.util.schema import SCHEMA

PAGE = Path(loading.__file__).with_name("table.py")

_TEXT = '''\
"""What the command line says of its commands before it loads them; written by `python -m tests.support.command_table`."""

from __future__ import annotations

#: What the help of a group says of each command.
FIRST_LINES = {{
{lines}}}

#: The keys of [tool.sa_jobqueue] in pyproject.toml, and those that may have several values.
SETTINGS = frozenset((
{settings}
))  # fmt: skip
SEVERAL = frozenset(({several}))

#: `list_workers()` as text, with what `alive` reads of it.
WORKERS = """\
{workers}
"""
'''


def table() -> str:
    """The module, made from all commands."""
    commands = dict(_commands(typer.main.get_command(app)))
    first_lines = {path: command.help.split("\n\n")[0] for path, command in commands.items()}
    settings = {key_of(option): bool(option.multiple) for one in commands.values() for option in settings_of(one)}
    return _TEXT.format(
        lines="".join(f'    "{path}": {_quoted(line)},\n' for path, line in first_lines.items()),
        settings=textwrap.fill(_listed(settings) + ",", 130, initial_indent="    ", subsequent_indent="    "),
        several=_listed(key for key, several in settings.items() if several),
        workers=_workers(),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))


def _workers() -> str:
    columns = [
        column for column in list_workers().selected_columns if column.key in {"id", "host", "pid", "unseen", "stale"}
    ]
    compiled = (
        list_workers().with_only_columns(*columns).compile(dialect=dialect(), compile_kwargs={"literal_binds": True})
    )
    return "\n".join(line.rstrip() for line in str(compiled).replace(f"{SCHEMA}.", "{schema}.").splitlines())


def _commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield " ".join((*path, name)), command
        if hasattr(command, "commands"):
            yield from _commands(command, *path, name)


def _quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


if __name__ == "__main__":
    PAGE.write_text(table())
