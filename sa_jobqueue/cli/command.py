"""How a function becomes a command: with its options, and with errors on one line.

    @command
    def stats(config: Config, json: Json = False) -> None:
        with transaction(config) as connection:
            ...

`command` makes a Typer command of a function. A parameter whose class is an `Options`, as `Config` is, stands for all the
options that the class declares. An expected error becomes one line on stderr and exit code 2.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from sa_jobqueue.log import one_line

from .config import Config, LogLevel
from .messages import plain_errors, set_up_logging
from .options import Options

__all__ = ["command", "help_text"]


def command(
    handler: Callable[..., None],
    /,
    *,
    app: bool = False,
    database: bool = True,
    schema: bool = True,
    log_level: LogLevel = LogLevel.WARNING,
) -> Callable[..., None]:
    """Make a Typer command of `handler`.

    `app`: it takes `--app` too. `database`: it takes a database, and `schema`: a schema. `log_level`: the default of
    `--log-level`. Errors become one line and exit code 2.
    """
    taken = {"app": app, "database_url": database, "schema": database and schema}
    left_out = {option for option, is_taken in taken.items() if not is_taken}
    hints = get_type_hints(handler, include_extras=True)
    bundles: dict[str, list[str]] = {}
    own: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(handler).parameters.items():
        if not (isinstance(hints[name], type) and issubclass(hints[name], Options)):
            own.append(_option(name, hints[name], parameter.default))
            continue
        options = hints[name].declared()
        bundles[name] = [option for option in options if option not in left_out]
        here = [_option(option, *options[option]) for option in bundles[name]]
        (shared if hints[name] is Config else own).extend(here)
    parameters = [one.replace(default=log_level) if one.name == "log_level" else one for one in (*own, *shared)]

    @functools.wraps(handler)
    def run(**given: Any) -> None:
        said = {name: {option: given.pop(option) for option in options} for name, options in bundles.items()}
        with plain_errors(debug=any(options.get("debug") for options in said.values())):
            made = {name: hints[name].from_options(**options) for name, options in said.items()}
            for one in made.values():
                if isinstance(one, Config):
                    set_up_logging(one.log_level)
            handler(**made, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = help_text(handler.__doc__ or "")
    return run


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def help_text(docstring: str) -> str:
    """A docstring as Typer's help: prose is one line per paragraph, to be wrapped; examples keep their lines."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(f"\b\n{one}" if one.startswith("sa-jobqueue ") else one_line(one) for one in paragraphs)
