"""Enqueue a job by hand: `enqueue`."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any, cast

import sqlalchemy as sa
import typer
from pydantic import PydanticUserError, TypeAdapter

from ..arguments.questions import question_of
from ..arguments.subjects import Subject
from ..errors import ConfigurationError, OptionError, PayloadError
from ..models import Job, JobMixin, Wait, is_own, own_column
from ..rules.limits import keys_said
from ..rules.words import age, jobs_of
from ..sql.steps import question_for
from ..statements import insert_jobs, send_signal
from ..tasks.calls import Call
from ..tasks.options import Unique
from ..tasks.registry import Registry, TaskName
from ..tasks.tasks import Task
from .application import load_registry, own_jobs
from .config import Config, Json, Options, duration_option
from .output import moment, note, print_json
from .place import transaction


@dataclass(frozen=True)
class CallOptions(Options):
    """A task with its arguments, and the options of its jobs that `enqueue` and `schedule add` share."""

    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name, as in shop.send_receipt.")]
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments by name, as a JSON object; - reads them from stdin.")
    ] = "{}"
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="NAME", help="The queue. Default: the task's, or default.")
    ] = None
    priority: Annotated[
        int | None, typer.Option(metavar="0-9", help="Higher first. Default: the task's, or 4.", show_default=False)
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Fail after N attempts. Default: the task's, or 10.")
    ] = None
    expires_in: Annotated[
        timedelta | None, duration_option(help="Cancel a job that has not been attempted within this time.")
    ] = None
    deadline: Annotated[timedelta | None, duration_option(help="Time for all attempts of a job together.")] = None
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A key by which jobs are ordered, limited and served in turn.")
    ] = None
    units: Annotated[int | None, typer.Option(metavar="N", help="How much of a rate a job takes. Default: 1.")] = None
    unit: Annotated[
        list[str] | None,
        typer.Option(metavar="UNIT=N", help="The named units that a job takes, such as tokens=1800. Can be repeated."),
    ] = None
    keys: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Another key, which only limits, as in provider=openai. Can be repeated."
        ),
    ] = None


def enqueue(
    config: Config,
    given: CallOptions,
    *,
    delay: Annotated[
        timedelta | None, duration_option(help="Do not run it before this time has passed: 45s, 10m, 2h, 3d.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Do not run it before: 2030-01-31T09:00+01:00, with its zone.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Cancel it if it has not been attempted by then, with its zone.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Keep one unfinished job with this key. Default: the task's rule, with --app."
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="TYPE:ID", help="The row that the job is about, as in Order:7.")
    ] = None,
    tag: Annotated[list[str], typer.Option(metavar="TEXT", help="A tag, kept in meta. Can be repeated.")] = [],  # noqa: B006  # Typer's
    meta: Annotated[
        str | None, typer.Option(metavar="JSON", help="An object to keep with the job: trace context and the like.")
    ] = None,
    column: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUE", help="The value of a column of your own job table. Can be repeated."),
    ] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Enqueue one job. Print its id, and describe the job on stderr.

    With --app the task must exist, its own options apply, and the arguments are checked against its handler. Without --app the
    worker checks the arguments, and the job goes into the queue default and is not unique, unless you give --queue or --unique.
    If --app names the registry of a job table of your own, the job goes into that table.

    sa-jobqueue enqueue shop.send_receipt '{"order_id": 7}' --app shop.tasks
    sa-jobqueue enqueue shop.report '{}' --queue slow --delay 1h
    sa-jobqueue enqueue shop.report '{}' --app shop.tasks:registry --column tenant_id=7
    """
    if expires_at is not None and given.expires_in is not None:
        raise OptionError("--expires-at and --expires-in exclude each other: give one of them")
    registry = load_registry(config)
    config, job = own_jobs(config, registry)
    call = call_of(
        config, given, registry=registry, columns=_columns(job, column) or None, delay=delay,
        run_at=time_of(run_at, "--run-at"), expires_at=time_of(expires_at, "--expires-at"),
        unique=None if unique is None else Unique(unique), tags=tag or None,
        subject=None if subject is None else Subject.parse(subject),
        meta=None if meta is None else object_of(meta, "--meta"),
    )  # fmt: skip
    original = None
    with transaction(config, make=True) as connection:
        job_id = connection.execute(insert_jobs([call], job=job)).scalar_one()
        if call.uniqueness is not None:  # `duplicate_of` is all that a role which only enqueues can read of another job
            original = connection.execute(sa.select(Job.duplicate_of).where(Job.id == job_id)).scalar_one()
        now = connection.execute(sa.select(sa.func.now())).scalar_one()
    due = now + call.run_at if isinstance(call.run_at, timedelta) else call.run_at
    tags, extras = jsonlib.loads(call.meta).get("tags", []), jsonlib.loads(call.extras or "{}")
    if json:
        print_json({
            "id": job_id, "task": call.task, "queue": call.queue, "priority": call.priority, "run_at": due,
            "max_attempts": call.max_attempts, "key": call.key, "keys": extras.get("keys"), "units": call.units, "tags": tags, "duplicate_of": original,
        })  # fmt: skip
        return
    typer.echo(job_id)
    when = f"due {moment(due)} (in {age((due - now).total_seconds())})" if due > now else "due now"
    if original is not None:
        when = f"cancelled, as a duplicate of job {original}"
    labels = f" · {'tag' if len(tags) == 1 else 'tags'} {', '.join(tags)}" if tags else ""
    key = "" if call.key is None else f" · key {call.key}"
    if others := keys_said(extras):
        key += f" · {others}"
    note(f"{call.task} · queue {call.queue}{key} · priority {call.priority} · {when}{labels}")


def signal(
    config: Config,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name, as in order:17:approve.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="What the handler gets. Default: null.")] = "null",
    *,
    expires_in: Annotated[
        timedelta | None, duration_option(help="Keep it for this time if no handler takes it. Default: 30d.")
    ] = None,
) -> None:
    """Send a signal to a handler that waits, or will wait, in ctx.wait_signal(NAME). Print its id.

    sa-jobqueue signal order:17:approve '{"by": "ann"}'
    """
    try:
        value = jsonlib.loads(payload)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f'the payload must be JSON, as in \'{{"by": "ann"}}\': {error}') from error
    with transaction(config) as connection:
        question = question_of(connection.scalar(question_for(name)))
        if question is not None and (reason := question.misfit(value)):
            raise PayloadError(f"this is no answer to the question {question.text!r:.80}: {reason}")
        sent = connection.execute(send_signal(name, value, expires_in=expires_in)).scalar_one()
        # The role of a producer may read only these columns.
        here = Wait.signal == name, Wait.resumed_at.is_(None)
        waiting = connection.execute(sa.select(sa.func.count()).where(*here)).scalar_one()
    typer.echo(sent)
    kept = age((timedelta(days=30) if expires_in is None else expires_in).total_seconds())
    note(
        f"sent; 1 {f'of {jobs_of(waiting)}' if waiting > 1 else 'job'} that waited for it goes on"
        if waiting
        else f"kept for {kept}: no job waits for it now, so the payload was not checked"
    )


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
    """Parse `text` as a value of the column."""
    try:
        kind: type[Any] = column.type.python_type
        return jsonlib.loads(text) if kind in (dict, list) else TypeAdapter(kind).validate_strings(text)
    except (NotImplementedError, PydanticUserError):
        return text
    except ValueError:
        raise OptionError(f"--column {column.name}: {text[:80]!r} is no value of the type {column.type!r}") from None


def call_of(config: Config, given: CallOptions, *, registry: Registry | None = None, **options: Any) -> Call:
    """The call of a task. `registry`: given if --app was loaded before; `options`: more options of the job.

    With --app the task must exist, and the arguments are checked against its handler. Raises ConfigurationError or PayloadError.
    """
    options |= asdict(given)
    name, text, named = options.pop("task"), options.pop("arguments"), options.pop("unit")
    others = options.pop("keys")
    registry = load_registry(config) if registry is None else registry
    task = registry.get(name)
    if task is None and config.app:
        near = get_close_matches(name, [known.name for known in registry], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"--app {', '.join(config.app)}: no task named {name!r}{hint} (--app '' enqueues by name, unchecked)"
        )
    target: Task[..., ..., Any] | TaskName = (TaskName(name) if task is None else task).options(**options)
    if named:
        target = target.options(units=dict(_named_units(text) for text in named))
    if others:
        target = target.options(keys=dict(_other_key(text) for text in others))
    if text == "-":
        if sys.stdin is None:
            raise PayloadError("the arguments must come from stdin, which is closed")
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise PayloadError(f"the arguments on stdin are not UTF-8: {error}") from error
    arguments = object_of(text, "the arguments")
    if isinstance(target, Task):
        # JSON has no UUIDs and no dates; the handler's annotations have.
        args, kwargs = target.decode(text, what="the arguments")
        return target.call(*args, **kwargs)
    return target.call(**arguments)


def _named_units(text: str) -> tuple[str, int]:
    unit, _, amount = text.rpartition("=")
    if not amount.isdecimal() or not unit:
        raise OptionError(f"--unit must be a name and a number, as in tokens=1800, not {text!r}")
    return unit, int(amount)


def _other_key(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--keys must be a name and a value, as in provider=openai, not {text!r}")
    return name, value


def object_of(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises PayloadError."""
    try:
        value = jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{what} must be a JSON object, as in '{{\"order_id\": 7}}': {error}") from error
    if not isinstance(value, dict):
        raise PayloadError(f"{what} must be a JSON object, as in '{{\"order_id\": 7}}', not {text[:80]}")
    return cast(dict[str, Any], value)


def time_of(text: str | None, option: str) -> datetime | None:
    """Parse a time with its zone. Raises OptionError."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{option} must be a time as 2030-01-31T09:00+01:00, not {text!r}") from None
    if time.utcoffset() is None:
        raise OptionError(f"{option} must have a time zone, as in 2030-01-31T09:00+01:00, not {text!r}")
    return time
