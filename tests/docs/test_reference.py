"""The reference has all that is public."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sa_jobqueue
from sa_jobqueue import errors, migrations, statements, testing
from tests.docs.commands import root_command
from tests.support.commands import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the wheel is tested without docs/")


def documented() -> set[str]:
    """What the pages of the reference name in a directive of autodoc, `py:module` or `py:data`."""
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    return set(re.findall(r"^\.\. (?:auto\w+|py:module|py:data):: ([\w.]+)", text, re.MULTILINE))


def test_each_public_name_is_in_the_reference() -> None:
    """What `sa_jobqueue` exports is documented, as an object or, if it is a module, on a page of its own."""
    found = documented()
    missing = [name for name in sa_jobqueue.__all__ if name not in found and f"sa_jobqueue.{name}" not in found]
    missing.remove("JobQueueError")  # with its module
    assert missing == []


def test_each_statement_is_in_the_reference() -> None:
    """What `sa_jobqueue.statements` exports has its entry."""
    assert set(statements.__all__) <= documented()


def test_each_part_of_the_testing_kit_is_in_the_reference() -> None:
    """What `sa_jobqueue.testing` exports has its entry."""
    assert set(testing.__all__) <= documented()


def test_each_call_for_migrations_is_in_the_reference() -> None:
    """What `sa_jobqueue.migrations` exports has its entry."""
    values = {"CURRENT", "DEFAULT_SCHEMA", "VERSIONS", "MigrationOperations"}
    assert set(migrations.__all__) - values <= documented()


def test_each_error_says_what_it_is() -> None:
    """The page of errors is made from the module as a whole; an error without a docstring would not be on it."""
    assert "sa_jobqueue.errors" in documented()
    assert [name for name in errors.__all__ if not vars(errors)[name].__doc__] == []


def test_each_error_can_happen() -> None:
    """Somewhere in the package it is raised, or made for a caller that raises it."""
    package = Path(sa_jobqueue.__file__).parent
    code = "\n".join(path.read_text() for path in package.rglob("*.py"))
    never = [name for name in errors.__all__ if not re.search(rf"(?<!class ){name}[(,]", code)]
    assert never == []


def test_each_command_and_option_says_what_it_does() -> None:
    """The page of commands is made from their help."""

    def silent(command, path):  # type: ignore[no-untyped-def]
        yield from [path] if not command.help else []
        shown = [one for one in command.params if not getattr(one, "hidden", False)]
        yield from (f"{path} {one.name}" for one in shown if not getattr(one, "help", None))
        for name, one in getattr(command, "commands", {}).items():
            yield from silent(one, f"{path} {name}")

    assert list(silent(root_command(), "sa-jobqueue")) == []
