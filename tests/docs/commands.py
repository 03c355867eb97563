"""Checks that a command of ours, wherever a text mentions it, is there with its options."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

#: `sa-jobqueue …` to the end of its line, its quote, or the next shell word.
_MENTION = re.compile(r"sa-jobqueue(?P<rest>(?: [^\n`;|&)\]]+)?)")


@cache
def root_command() -> Any:
    """The CLI as the tree of commands that Typer makes of it."""
    import typer.main

    from sa_jobqueue.cli.tree import app

    return typer.main.get_command(app)


def check_commands(text: str) -> None:
    """AssertionError for a subcommand or an option in `text` that the CLI does not have."""
    text = text.replace("\\\n", " ")
    for found in _MENTION.finditer(re.sub(r'", *"', " ", text)):
        if text[: found.start()].endswith(("extra ", "package ", "/", '"')) and not found["rest"].strip():
            continue
        _check(found["rest"])


def _check(rest: str) -> None:
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        words = rest.split()
    command = root_command()
    for word in words:
        if word in {"…", "..."} or word.startswith(("$", "<", ">")):
            return
        subcommands = getattr(command, "commands", None)
        if word.startswith("-"):
            option = word.split("=")[0]
            known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
            assert option in known, f"sa-jobqueue{rest}: {command.name} has no {option}; it has {sorted(known)}"
        elif subcommands is not None:
            if not re.fullmatch(r"[a-z][a-z-]*", word):
                return
            assert word in subcommands, f"sa-jobqueue{rest}: no command {word}; there are {sorted(subcommands)}"
            command = subcommands[word]
