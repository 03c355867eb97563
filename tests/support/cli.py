"""Commands in this process: quick, for what does not need a process of its own.

result = invoke("list", "--json", url=database_url)
assert result.exit_code == 0, result.output
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from inspect import signature
from typing import Any

from typer.testing import CliRunner, Result

from sa_jobqueue.cli.tree import app

#: Before Click 8.2 a runner mixes stderr into stdout, unless it is told not to.
_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


def invoke(
    *arguments: str, url: str | None = None, env: Mapping[str, str] | None = None, stdin: str | bytes | None = None
) -> Result:
    """Run `sa-jobqueue ARGUMENTS` with none of the caller's settings; an unexpected error is raised here."""
    settings: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(("SA_JOBQUEUE_", "DATABASE_URL"))
    }
    settings |= {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "SA_JOBQUEUE_DATABASE_URL": url, **(env or {})}
    result = CliRunner(env=settings, **_APART).invoke(app, list(arguments), input=stdin, prog_name="sa-jobqueue")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def output(*arguments: str, url: str, **options: Any) -> str:
    """What a command that succeeds writes on stdout."""
    result = invoke(*arguments, url=url, **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str, url: str, **options: Any) -> Any:
    """What a command that succeeds writes with `--json`."""
    return json.loads(output(*arguments, "--json", url=url, **options))


def notes(result: Result) -> str:
    """What a command writes on stderr besides the name of its database, which each says once."""
    lines = result.stderr.splitlines(keepends=True)
    assert sum(line.startswith("database: ") for line in lines) == 1, result.stderr
    return "".join(line for line in lines if not line.startswith("database: "))


def refused(*arguments: str, **options: Any) -> str:
    """The one line of a command that is refused, besides the name of its database: exit code 2, nothing on stdout."""
    result = invoke(*arguments, **options)
    assert result.exit_code == 2, result.output
    assert result.stdout == "", result.stdout
    said = "".join(line for line in result.stderr.splitlines(keepends=True) if not line.startswith("database: "))
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said
