"""The embedded PostgreSQL: `embedded status`, `stop`, `path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ..util.urls import check_psycopg
from .config import Config, Json
from .output import print_json, say

if TYPE_CHECKING:
    from ..embedded import EmbeddedServer


def status(config: Config, *, json: Json = False) -> None:
    """Show whether the server runs, and where its files are. Exit code 3 if it does not run."""
    server = _server(config)
    found = server.status()
    if json:
        print_json({"running": found.running, "pid": found.pid, "version": found.version,
                    "directory": server.directory, "log": found.log, "url": found.url})  # fmt: skip
    else:
        state = f"running, process {found.pid}" if found.running else "not running"
        say(
            f"PostgreSQL  {found.version}, {state}\nfolder      {server.directory}\nlog         {found.log}\nURL         {found.url}"
        )
    if not found.running:
        raise typer.Exit(3)


def stop(config: Config) -> None:
    """Stop the server and end all its connections. Its data stays; migrate, enqueue or work start it again."""
    say("stopped" if _server(config).stop() else "it was not running")


def path(config: Config) -> None:
    """Print the folder with its data, programs and log."""
    typer.echo(_server(config).directory)


def _server(config: Config) -> EmbeddedServer:
    check_psycopg()
    from ..embedded import EmbeddedServer, default_directory

    return EmbeddedServer(config.embedded_dir or default_directory())
