"""The directive `cli-reference`: every command with its arguments and options, as `--help` knows them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer
import typer.main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PROGRAM = "sa-jobqueue"
#: The groups of options that every command has.
COMMON = ("Database", "General")


def markdown() -> str:
    """The reference of all commands."""
    from sa_jobqueue.cli.tree import app

    return "\n".join(_command(typer.main.get_command(app), PROGRAM, 2))


def _command(command: Any, path: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{path}`\n"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    subcommands = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    words = [
        path,
        *(["[OPTIONS]"] if options else []),
        *map(_metavar, arguments),
        *(["COMMAND"] if subcommands else []),
    ]
    yield f"```text\n{' '.join(words)}\n```\n"
    yield f"{_help(command.help)}\n"
    yield from (f"`{_metavar(one)}`\n: {_plain(one.help) or 'required'}\n" for one in arguments)
    yield from (_entry(one) for one in options if one.rich_help_panel not in COMMON)
    if level == 2:
        yield from _common(subcommands.values())
    for name, one in subcommands.items():
        yield from _command(one, f"{path} {name}", level + 1)


def _common(commands: Iterable[Any]) -> Iterator[str]:
    """The options that most commands have, once."""
    found = {
        one.name: one for command in commands for one in command.params if getattr(one, "rich_help_panel", "") in COMMON
    }  # fmt: skip
    yield "### Options of all commands\n"
    yield "Each command takes these, as far as they have a meaning for it.\n"
    yield from map(_entry, found.values())


def _entry(option: Any) -> str:
    return f"`{_option(option)}`\n: {_explained(option)}\n"


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name).strip("[].").upper()
    name += "..." if argument.nargs != 1 else ""
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = ", ".join(option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(option.secondary_opts)
    if option.is_flag:
        return names
    return f"{names} {option.metavar or _kind(option)}"


def _kind(option: Any) -> str:
    """What an option takes, as its `--help` names it: INT, text|json."""
    words = getattr(option, "display_type", None) or option.make_metavar  # the latter: before Typer had its own Click
    said = re.sub(r"[<>\[\]]", "", words(typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))))
    return said if "|" in said else said.split()[0].upper()


def _explained(option: Any) -> str:
    said = [_plain(option.help)]
    if (
        option.show_default
        and not option.is_flag
        and option.default not in (None, (), [], "")
        and not callable(option.default)
    ):
        shown = ", ".join(option.default) if isinstance(option.default, list) else option.default
        said.append(f"Default: `{shown}`.")
    if option.envvar:
        said.append(f"Environment: `{option.envvar}`.")
    return " ".join(said)


def _help(text: str | None) -> str:
    """A command's help as Markdown; what stands below a `\\b` are examples."""
    paragraphs = inspect.cleandoc(text or "").replace("\f", "").split("\n\n")
    return "\n\n".join(
        "```text\n" + inspect.cleandoc(one.replace("\b", "")).strip() + "\n```" if "\b" in one else _plain(one)
        for one in paragraphs
    )


def _plain(text: str | None) -> str:
    """Help text as Markdown: without Rich's markup, and with its signs taken as they are."""
    cleaned = re.sub(r"(?<!\\)\[/?[a-z][a-z ]*\]", "", " ".join((text or "").split())).replace("\\[", "[")
    cleaned = re.sub(r"(?<![\w`])(--[a-z][a-z-]*)", r"`\1`", cleaned)
    return re.sub(r"([<>*#])", r"\\\1", cleaned)


class CliReference(SphinxDirective):
    """Puts the reference where it stands."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(markdown(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("cli-reference", CliReference)
    return {"parallel_read_safe": True}
