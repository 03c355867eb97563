"""The command `demo`: the main job, seen from enqueueing to the proof, with a worker killed in the middle.

sa-jobqueue demo --path src --async
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sa_jobqueue.urls import database_url

from .config import Config
from .place import embedded_database

__all__ = ["demo"]


def demo(
    config: Config,
    *,
    path: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Index the .py files below this folder. Without one: Python's own library."
        ),
    ] = None,
    use_async: Annotated[bool, typer.Option("--async", help="Use async def handlers and AsyncSession.")] = False,
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="The number of worker processes.")] = 2,
) -> None:
    """Index a code base with jobs, kill a worker in the middle, and prove that nothing is lost and nothing done twice.

    For each file one transaction writes a row and enqueues a job, which parses the file and writes what it finds. One
    file that comes with the demo does not parse. At the end the database is compared with a plain loop over the same
    files; exit code 1 if they differ. In a folder of a few files there may be no worker to kill in the middle: the report
    says so. Without --path that fails, too.

    All tables are in the schema sa_jobqueue_demo, which every run drops and creates again; without --database-url that
    is in a database of its own on the embedded PostgreSQL, whatever DATABASE_URL says. The tasks, to be read and copied, are in
    sa_jobqueue/demo/tasks.py.
    """
    # Its tasks are in the default registry, which is the application's in every other command.
    from sa_jobqueue.demo.run import SCHEMA, Plan, run_demo, standard_library

    given = config.database_url
    url = embedded_database(config, SCHEMA, make=True) if given is None else database_url(given)
    plan = Plan(standard_library() if path is None else path, processes, use_async, must_rescue=path is None)
    if not run_demo(url, plan, Console(soft_wrap=False)):
        raise typer.Exit(1)
