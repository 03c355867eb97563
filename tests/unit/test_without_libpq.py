"""psycopg without libpq, as a plain `pip install sa_jobqueue` has it on a machine without PostgreSQL's client."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("measured")

#: psycopg cannot import an implementation that is not there.
WITHOUT = {"PSYCOPG_IMPL": "none"}

PRODUCER = """
import sys
from sqlalchemy import create_engine
from sa_jobqueue import enqueue, enqueue_many, task

@task(name="mail")
def mail(to: str) -> None: ...

print(enqueue(mail, "ada").args)
for driver in ("pg8000", "asyncpg"):
    dialect = create_engine(f"postgresql+{driver}://localhost/shop").dialect
    assert "INSERT" in str(enqueue_many([mail.call("ada")]).compile(dialect=dialect))
assert "psycopg" not in sys.modules
"""

WORKER = """
from sa_jobqueue import Worker
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.migrations import upgrade_database

for use in (lambda url: Worker(url, {"default": 1}), upgrade_database):
    try:
        use("postgresql://localhost/shop")
    except ConfigurationError as error:
        print(error)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | WITHOUT, capture_output=True, text=True, check=False
    )


def test_a_worker_needs_it_and_a_producer_over_another_driver_does_not() -> None:
    """Importing, enqueueing and building statements are Python. A worker and a migration say what to install."""
    done = python("-c", PRODUCER + WORKER)

    assert done.returncode == 0, done.stderr
    made, *said = done.stdout.splitlines()
    assert made == "{'to': 'ada'}"
    assert len(said) == 2
    assert all("install sa_jobqueue[binary]" in line for line in said)


HELP_OF_ALL = """
import typer.main
from sa_jobqueue.cli.tree import app

def load(group):
    for command in group.commands.values():
        load(command) if hasattr(command, "commands") else print(command.name)

load(typer.main.get_command(app))
"""


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("alive",), ("embedded", "path"), ("doctor", "--database-url", "postgresql://localhost/shop")],
)
def test_a_command_that_needs_it_says_so_on_one_line(arguments: tuple[str, ...]) -> None:
    """No traceback."""
    done = python("-m", "sa_jobqueue", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: psycopg cannot be used")
    assert "install sa_jobqueue[binary]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_does_not_need_it() -> None:
    """Of no command: each can be loaded."""
    done = python("-c", HELP_OF_ALL)

    assert done.returncode == 0, done.stderr
    assert {"alive", "doctor", "path", "top"} <= set(done.stdout.split())
