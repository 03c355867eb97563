"""The command `demo`, and the commands of `bench`, which measure the queue on the user's own database.

sa-jobqueue bench drain --jobs 100000 --processes 2
"""

from __future__ import annotations

import random
import string
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ..trials.bench import modes
from ..trials.bench.processes import Tell
from ..util.urls import database_url
from .config import Config, Json, Options
from .output import Column, print_json, print_table
from .place import database, embedded_database

_Payload = Annotated[
    int, typer.Option(metavar="N", min=0, max=500_000, help="Additional bytes of arguments in each job.")
]


@dataclass(frozen=True)
class Load(Options):
    """The options that `drain` and `steady` share: the workers, and the size of jobs."""

    processes: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Worker processes.")] = 1
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Jobs that each process runs at a time.")
    ] = 100
    use_async: Annotated[bool, typer.Option("--async/--sync", help="Handlers are async def, or def on threads.")] = True
    payload_bytes: _Payload = 0
    json: Json = False

    def arguments(self) -> dict[str, Any]:
        """The arguments of the measurement."""
        return {
            "processes_": self.processes, "slots": self.concurrency, "use_async": self.use_async,
            "payload": _payload(self.payload_bytes),
        }  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """The settings in the JSON output."""
        return {
            "processes": self.processes, "concurrency": self.concurrency,
            "handlers": "async" if self.use_async else "sync", "payload_bytes": self.payload_bytes,
        }  # fmt: skip


def drain(
    config: Config,
    *,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=100_000_000, help="The number of jobs to run.")] = 50_000,
    load: Load,
) -> None:
    """Fill a queue with jobs that do nothing and time how fast workers empty it.

    The result is the highest number of jobs per second on this database: the cost of workers and PostgreSQL, without work in the
    jobs. A second process helps if it has a processor of its own. The time runs from the first claim until another connection
    sees that the last job is completed, so a job counts when its completion is durable; the start of the processes does not count.

    sa-jobqueue bench drain --jobs 100000 --processes 2

    sa-jobqueue bench drain --sync --concurrency 20 --payload-bytes 1000
    """
    with _progress("drained", quiet=load.json) as tell:
        found = modes.drain(database(config, make=True), jobs=jobs, tell=tell, **load.arguments())
    if load.json:
        print_json({"measure": "drain", **load.settings(), **asdict(found)})
        return
    row = [f"{found.jobs:,}", f"{found.seconds:.2f} s", f"{found.jobs_per_second:,.0f}"]
    print_table([_right("jobs"), _right("time"), _right("jobs/s")], [row])


def steady(
    config: Config,
    *,
    rate: Annotated[float, typer.Option(metavar="N", min=0.1, max=1_000_000, help="Jobs to enqueue per second.")] = 100,
    seconds: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="How long to enqueue.")] = 10,
    load: Load,
) -> None:
    """Enqueue at a fixed rate and show how long jobs wait, and how long they take to complete.

    A producer commits each job separately while the rate allows it. "start" is when the handler begins; "completed" is when another
    connection sees the completion (it checks every few milliseconds, so this is a little late). Raise the rate to see at which
    load the waits grow: bench drain shows the highest possible rate.

    sa-jobqueue bench steady --rate 500 --seconds 30
    """
    with _progress("completed", quiet=load.json) as tell:
        url = database(config, make=True)
        found = modes.steady(url, rate=rate, seconds=seconds, tell=tell, **load.arguments())
    if load.json:
        print_json({"measure": "steady", "rate": rate, **load.settings(), **asdict(found)})
        return
    names = ("enqueue to start", "start to completed", "enqueue to completed")
    spans = (found.enqueue_to_start, found.start_to_completed, found.enqueue_to_completed)
    rows = [
        [name, *(f"{value:,.1f} ms" for value in (times.p50, times.p95, times.p99, times.max))]
        for name, times in zip(names, spans, strict=True)
    ]
    title = f"{found.jobs:,} jobs at {found.jobs_per_second:,.0f}/s"
    print_table([Column(title), *map(_right, ("p50", "p95", "p99", "max"))], rows)


def enqueue(
    config: Config,
    *,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=10_000_000, help="Jobs to enqueue in bulk.")] = 50_000,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3_600, help="How long clients enqueue one by one.")
    ] = 3,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="Clients that enqueue at once.")] = 16,
    payload_bytes: _Payload = 0,
    json: Json = False,
) -> None:
    """Show how fast jobs can be enqueued: one by one, in bulk, and by many clients at once.

    One by one is session.add(enqueue(...)) and a commit for each job, by one client and then by many. In bulk is
    enqueue_many in one transaction. No worker runs meanwhile.

    sa-jobqueue bench enqueue --concurrency 32 --payload-bytes 200
    """
    with _progress("measured", quiet=json) as tell:
        found = modes.enqueueing(
            database(config, make=True), jobs=jobs, seconds=seconds, concurrency=concurrency, payload=_payload(payload_bytes),
            tell=tell,
        )  # fmt: skip
    if json:
        print_json({"measure": "enqueue", "jobs": jobs, "payload_bytes": payload_bytes, **asdict(found)})
        return
    rows = [
        ["session.add + commit, 1 client", f"{found.one_client:,.0f}"],
        [f"session.add + commit, {found.clients} clients", f"{found.concurrent:,.0f}"],
        [f"enqueue_many, {jobs:,} jobs", f"{found.bulk:,.0f}"],
    ]
    print_table([Column("enqueue"), _right("jobs/s")], rows)


def _payload(size: int) -> str:
    return "".join(random.Random(size).choices(string.ascii_letters, k=size))  # nothing that compresses well


def _right(name: str) -> Column:
    return Column(name, justify="right")


@contextmanager
def _progress(name: str, *, quiet: bool) -> Generator[Tell | None]:
    """A bar on stderr, where that is a terminal; None where it is not."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        bar = progress.add_task(f"{name}: preparing", total=None)

        def tell(done: int, of: int) -> None:
            progress.update(bar, description=name, completed=done, total=of)

        yield tell


# ---- The command `demo`.


def demo(
    config: Config,
    *,
    path: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Index the .py files in this folder. Default: Python's library."),
    ] = None,
    use_async: Annotated[bool, typer.Option("--async", help="Use async def handlers and AsyncSession.")] = False,
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="The number of worker processes.")] = 2,
) -> None:
    """Index a code base with jobs, kill a worker in the middle, and prove that nothing is lost and nothing done twice.

    For each file one transaction writes a row and enqueues a job, which parses the file and writes its findings. A file that
    comes with the demo cannot be parsed. At the end the database is compared with a plain loop over the same files; exit code 1
    if they differ. In a folder with few files the run may end before a worker can be killed: the report mentions it, and
    without --path the demo then fails.

    All tables are in the schema sa_jobqueue_demo, which every run drops and creates again; without --database-url it is in a
    database of its own on the embedded PostgreSQL, even if DATABASE_URL is set. The tasks, to be read and copied, are in
    sa_jobqueue/trials/demo/tasks.py.
    """
    # Imported here, because its tasks are in the default registry, which is the application's in every other command.
    from ..trials.demo.run import SCHEMA, Plan, run_demo, standard_library

    given = config.database_url
    url = embedded_database(config, SCHEMA, make=True) if given is None else database_url(given)
    plan = Plan(standard_library() if path is None else path, processes, use_async, must_rescue=path is None)
    if not run_demo(url, plan, Console(soft_wrap=False)):
        raise typer.Exit(1)
