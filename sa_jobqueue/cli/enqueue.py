"""Making a job by hand: `enqueue`."""

from __future__ import annotations

import json as jsonlib
import sys
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any, cast

import sqlalchemy as sa
import typer
from pydantic import PydanticUserError, TypeAdapter

from ..arguments.subjects import Subject
from ..errors import ConfigurationError, OptionError, PayloadError
from ..models import Job, JobMixin, is_own, own_column
from ..rules.words import age
from ..statements import insert_jobs
from ..tasks.calls import Call
from ..tasks.options import Unique
from ..tasks.registry import Registry, TaskName
from ..tasks.tasks import Task
from .application import load_registry, own_jobs
from .config import Config, Json, Key, Units, parse_duration
from .output import moment, note, print_json
from .place import transaction


def enqueue(
    config: Config,
    *,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name, as in shop.send_receipt.")],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments by name, as a JSON object; - reads them from stdin.")
    ] = "{}",
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="NAME", help="The queue. Default: the task's, or default."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="0-9", help="Higher first. Default: the task's, or 4.", show_default=False)
    ] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Not before this time has passed: 45s, 10m, 2h, 3d."),
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before this time, with its zone: 2030-01-31T09:00+01:00.")
    ] = None,
    expires_in: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Cancel it if no attempt was made after this time."),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Cancel it if no attempt was made by this time, with its zone."),
    ] = None,
    deadline: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Time for all its attempts together, from now."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Fail after N attempts. Default: the task's, or 10.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Keep one unfinished job with this key. Default: the task's rule, with --app."
        ),
    ] = None,
    key: Key = None,
    units: Units = None,
    subject: Annotated[
        str | None, typer.Option(metavar="TYPE:ID", help="The row that it is about, as Order:7. Default: none.")
    ] = None,
    tag: Annotated[list[str], typer.Option(metavar="TEXT", help="A tag, kept in meta. May be repeated.")] = [],  # noqa: B006  # Typer's
    meta: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="An object that is kept with the job: trace context and the like."),
    ] = None,
    column: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUE", help="What a column of your own job table is to have. May be repeated."),
    ] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Enqueue one job and print its id, and on stderr what it is.

    With --app the task must be there, its own options count, and the arguments are checked against its handler; without, the
    worker does that, and the job is of the queue default and not unique unless you say. If --app names the registry of a job table of your
    own, the job goes into that.

    sa-jobqueue enqueue shop.send_receipt '{"order_id": 7}' --app shop.tasks
    sa-jobqueue enqueue shop.report '{}' --queue slow --delay 1h
    sa-jobqueue enqueue shop.report '{}' --app shop.tasks:registry --column tenant_id=7
    """
    if expires_at is not None and expires_in is not None:
        raise OptionError("--expires-at and --expires-in exclude each other: give one of them")
    registry = load_registry(config)
    config, job = own_jobs(config, registry)
    call = call_of(
        config, task, arguments, registry=registry, columns=_columns(job, column) or None, queue=queue,
        priority=priority, delay=delay, run_at=time_of(run_at, "--run-at"), max_attempts=max_attempts, expires_in=expires_in, expires_at=time_of(expires_at, "--expires-at"),
        deadline=deadline, unique=None if unique is None else Unique(unique), key=key, units=units, tags=tag or None,
        subject=None if subject is None else Subject.parse(subject),
        meta=None if meta is None else object_of(meta, "--meta"),
    )  # fmt: skip
    with transaction(config, make=True) as connection:
        made = connection.execute(insert_jobs([call], job=job)).scalar_one()
        of = None if call.uniqueness is None else _duplicate_of(connection, made)
        now = connection.execute(sa.select(sa.func.now())).scalar_one()
    due = now + call.run_at if isinstance(call.run_at, timedelta) else call.run_at
    tags = jsonlib.loads(call.meta).get("tags", [])
    if json:
        said = {"id": made, "task": call.task, "queue": call.queue, "priority": call.priority, "run_at": due}
        said |= {"max_attempts": call.max_attempts, "key": call.key, "units": call.units, "tags": tags}
        print_json(said | {"duplicate_of": of})
        return
    typer.echo(made)
    when = f"due {moment(due)} (in {age((due - now).total_seconds())})" if due > now else "due now"
    if of is not None:
        when = f"cancelled, as a duplicate of job {of}"
    labels = f" · {'tag' if len(tags) == 1 else 'tags'} {', '.join(tags)}" if tags else ""
    key_said = "" if call.key is None else f" · key {call.key}"
    note(f"{call.task} · queue {call.queue}{key_said} · priority {call.priority} · {when}{labels}")


def _duplicate_of(connection: sa.Connection, id: int) -> int | None:
    """The job that has the unique key of job `id`, if that is a duplicate. An enqueuer may read no more of it."""
    return connection.execute(sa.select(Job.duplicate_of).where(Job.id == id)).scalar_one()


def _columns(job: type[JobMixin], given: list[str]) -> dict[str, Any]:
    """The values of `--column`, by attribute."""
    if given and not is_own(job):
        raise ConfigurationError(
            "--column is for a job table of your own: name its registry, --app shop.tasks:registry"
        )
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--column {text}: expected NAME=VALUE, as in tenant_id=7")
        found[name] = _value(own_column(job, name), value)
    return found


def _value(column: sa.Column[Any], text: str) -> Any:
    """`text` as a value of the column."""
    try:
        of: type[Any] = column.type.python_type
        if of in (dict, list):
            return jsonlib.loads(text)
        return TypeAdapter(of).validate_strings(text)
    except (NotImplementedError, PydanticUserError):
        return text
    except ValueError:
        raise OptionError(f"--column {column.name}: {text[:80]!r} is no value of the type {column.type!r}") from None


def call_of(config: Config, task: str, arguments: str, *, registry: Registry | None = None, **options: Any) -> Call:
    """The call of a task by its name, with arguments as JSON; "-" reads them from stdin. `registry`: if --app was loaded before.

    With --app the task must be there, and the arguments are checked against its handler. Raises ConfigurationError or PayloadError.
    """
    registry = load_registry(config) if registry is None else registry
    found = registry.get(task)
    if found is None and config.app:
        raise ConfigurationError(_unknown(task, registry, config))
    target: Task[..., ..., Any] | TaskName = found if found is not None else TaskName(task)
    target = target.options(**options)
    text = _stdin() if arguments == "-" else arguments
    given = object_of(text, "the arguments")
    if isinstance(target, Task):
        # JSON has no UUIDs and no dates; the handler's annotations have.
        args, kwargs = target.decode(text, what="the arguments")
        return target.call(*args, **kwargs)
    return target.call(**given)


def _unknown(task: str, registry: Registry, config: Config) -> str:
    near = get_close_matches(task, [one.name for one in registry], 1)
    there = f"; did you mean {near[0]!r}?" if near else ""
    return f"--app {', '.join(config.app)}: no task named {task!r}{there} (--app '' enqueues by name, unchecked)"


def _stdin() -> str:
    if sys.stdin is None:
        raise PayloadError("the arguments were to come from stdin, which is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"the arguments on stdin are not UTF-8: {error}") from error


def object_of(text: str, what: str) -> dict[str, Any]:
    try:
        value = jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{what} must be a JSON object, as in '{{\"order_id\": 7}}': {error}") from error
    if not isinstance(value, dict):
        raise PayloadError(f"{what} must be a JSON object, as in '{{\"order_id\": 7}}', not {text[:80]}")
    return cast(dict[str, Any], value)


def time_of(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{option} must be a time as 2030-01-31T09:00+01:00, not {text!r}") from None
    if time.utcoffset() is None:
        raise OptionError(f"{option} must have a time zone, as in 2030-01-31T09:00+01:00, not {text!r}")
    return time
