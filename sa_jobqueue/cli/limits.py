"""Limits: `limits list`, `limits set`, `limits remove`; `limits open` and `limits close` for breakers; and `pause` and `resume` of a queue, a task, or one key of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import sqlalchemy as sa
import typer

from ..errors import ConfigurationError, OptionError
from ..models import WorkerRow
from ..rules.limits import (
    Limits,
    Owner,
    WhenFull,
    checked_max_waiting,
    checked_running,
    checked_share,
    checked_weight,
    checked_when_full,
    further_rate,
    per_said,
    rate_columns,
    rates_said,
    read_rate,
    read_unit_rate,
)
from ..rules.retry import read_duration
from ..rules.words import age
from ..sql.limits.admin import change_limits
from ..sql.readings.depths import capped, list_workers
from ..sql.workers import serves
from ..statements import close_breaker, list_limits, open_breaker, pause, remove_limit, resume
from ..util.log import one_line
from ..util.urls import mask_passwords, masked
from .config import Config, Json, Options
from .output import Column, cleaned, note, print_json, print_table, say
from .place import transaction

_Task = Annotated[str, typer.Argument(metavar="TASK", help="The name of the task.")]
_Key = Annotated[str | None, typer.Option(metavar="KEY", help="Only the jobs with this key.")]
_WHEN_FULL = ", ".join(get_args(WhenFull))


@dataclass(frozen=True)
class Target(Options):
    """A queue or a task, or one key of it."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="The queue; with --task, the task.")]
    task: Annotated[bool, typer.Option("--task", "-t", help="NAME is the name of a task, in all queues.")] = False
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only the jobs with this key.")] = None

    @property
    def owner(self) -> Owner:
        """The kind of what NAME names."""
        return "task" if self.task else "queue"

    def __str__(self) -> str:
        """Return the target in words: "queue mail", "task shop.sync, key 42"."""
        return f"{self.owner} {self.name}" + ("" if self.key is None else f", key {self.key}")

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of statements that follow the name."""
        return {"key": self.key, "owner": self.owner}


@dataclass(frozen=True)
class ValueTarget(Target):
    """A queue or a task, or one key of it, or one value of another key."""

    of: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="KEY is a value of this other key, as in --of provider --key openai."),
    ] = None

    def __str__(self) -> str:
        """Return the target in words: "queue llm, provider openai"."""
        return super().__str__() if self.of is None else f"{self.owner} {self.name}, {self.of} {self.key}"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of statements that follow the name."""
        if self.of is not None and self.key is None:
            raise ConfigurationError(f"--of {self.of} names another key, and its value is missing: give it by --key")
        return {**super().options, "of": self.of}


def list_(config: Config, *, json: Json = False) -> None:
    """List limits, pauses and open breakers of queues, of tasks, and of keys that have their own, with the running and waiting jobs.

    Limits that an operator has changed are held: the limits that code declares do not replace them, until `limits remove`.

    sa-jobqueue limits list
    sa-jobqueue limits list --json
    """
    with transaction(config) as connection:
        rows = connection.execute(list_limits()).mappings().all()
    if json:
        print_json([_as_json(row) for row in rows])
        return
    if not rows:
        note("no limits, and nothing is paused; `sa-jobqueue limits set` sets limits, or in code @task(limits=...)")
        return
    lines: list[tuple[object, ...]] = []
    narrow: list[tuple[object, ...]] = []
    styles: list[str] = []
    above = None
    for row in rows:
        owner = f"{row['owner']} {row['name']}"
        if row["key"] is not None and owner != above:  # only single keys are limited there
            lines.append((owner, *[""] * 5))
            narrow.append((owner, *[""] * 3))
            styles.append("")
        above = owner
        lines.append(_line(row))
        narrow.append(_narrow_line(lines[-1], row))
        styles.append("dim" if row["paused_at"] is not None else "")
    print_table(_COLUMNS, lines, styles=styles, narrow=(_NARROW, narrow))


_COLUMNS = (
    Column("of", wide=True, least=12),
    Column("running", "right"),
    Column("waiting", "right"),
    Column("rate"),
    Column("each key", wide=True, least=8),
    Column("note", wide=True, least=12),
)
#: For narrow terminals: the last three columns stacked into one.
_NARROW = (*_COLUMNS[:3], Column("limits", wrapped=True, least=20))


def set_(
    config: Config,
    target: ValueTarget,
    *,
    running: Annotated[
        str | None, typer.Option(metavar="N|none", help="Jobs that may run at once.", show_default=False)
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/TIME|none", help="Jobs that may start in a time: 500/1m, 20/s.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option(metavar="N", help="Jobs that may start at once; 1 if --rate is given alone.")
    ] = None,
    unit_rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UNIT=N/TIME[:BURST]|none",
            help="A rate of a named unit, with a burst: tokens=200000/1m:5000. Can be repeated; replaces all rates of named units.",
        ),
    ] = None,
    key_running: Annotated[
        str | None, typer.Option(metavar="N|none", help="Jobs of each key that may run at once.")
    ] = None,
    key_rate: Annotated[
        str | None, typer.Option(metavar="N/TIME|none", help="Jobs of each key that may start in a time.")
    ] = None,
    key_burst: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of these, jobs that may start at once; 1 if --key-rate is given alone."),
    ] = None,
    strict: Annotated[
        bool | None,
        typer.Option("--strict/--not-strict", help="A key waits while one of its begun jobs waits to run again."),
    ] = None,
    max_waiting: Annotated[str | None, typer.Option(metavar="N|none", help="Jobs of each key that may wait.")] = None,
    when_full: Annotated[
        str | None,
        typer.Option(metavar="CHOICE", help=f"What happens to jobs whose key is at its limit: {_WHEN_FULL}."),
    ] = None,
    share: Annotated[
        str | None, typer.Option(metavar="starts|time", help="What the keys share equally. Default: starts.")
    ] = None,
    weight: Annotated[
        int | None,
        typer.Option(metavar="1-1000", help="With --key: the jobs that the key gets in its turn. Default: 1."),
    ] = None,
    json: Json = False,
) -> None:
    """Change the given limits; the others stay. "none" removes a limit.

    From then on the limits are held: a deployment does not change them.

    sa-jobqueue limits set sync --running 50 --rate 500/1m --burst 50
    sa-jobqueue limits set sync --key 42 --running 3 --weight 5
    sa-jobqueue limits set llm --unit-rate tokens=200000/1m:5000
    sa-jobqueue limits set llm --of provider --key openai --running 8
    sa-jobqueue limits set shop.sync --task --key-running 1
    """
    changes: dict[str, Any] = {}
    if running is not None:
        changes["running"] = checked_running(_number(running, "--running"))
    changes |= _rate(rate, burst, "")
    if unit_rate:
        rates = [] if unit_rate == ["none"] else [read_unit_rate(text) for text in unit_rate]
        changes["rates"] = [further_rate(rate) for rate in Limits(rates=rates).rates or ()] or None
    of_keys: dict[str, Any] = {}
    if key_running is not None:
        of_keys["key_running"] = checked_running(_number(key_running, "--key-running"))
    of_keys |= _rate(key_rate, key_burst, "key_")
    if strict is not None:
        of_keys["strict"] = strict
    if max_waiting is not None:
        of_keys["max_waiting"] = checked_max_waiting(_number(max_waiting, "--max-waiting"))
    if when_full is not None:
        of_keys["when_full"] = checked_when_full(when_full)
    if share is not None:
        of_keys["share"] = checked_share(share)
    if target.key is not None and of_keys:
        raise ConfigurationError(
            "--key takes --running, --rate, --burst, --unit-rate and --weight; the other options are for all keys of a queue or task"
        )
    if weight is not None:
        if target.key is None:
            raise ConfigurationError("--weight is the weight of a key: give --key with it")
        changes["weight"] = checked_weight(weight)
    changes |= of_keys
    if not changes:
        raise ConfigurationError("say what changes, as in --running 50")
    _act(config, target, change_limits(target.name, changes, **target.options), "set", json=json, changes=changes)


def remove(config: Config, target: ValueTarget, *, json: Json = False) -> None:
    """Remove limits that `limits set` has set: the limits that code declares apply again. A pause stays.

    sa-jobqueue limits remove sync
    sa-jobqueue limits remove sync --key 42
    sa-jobqueue limits remove llm --of provider --key openai
    """
    statement = remove_limit(target.name, **target.options)
    _act(config, target, statement, "removed", json=json, unchanged="has no limits that were set by hand")


def open_(
    config: Config,
    task: _Task,
    *,
    key: _Key = None,
    rest: Annotated[str, typer.Option(metavar="TIME", help="The time after which a job probes.")] = "2m",
    json: Json = False,
) -> None:
    """Open the breaker of a task, or of one key of it: no job starts; then one job probes, and closes or opens the breaker.

    sa-jobqueue limits open shop.send --rest 10m
    """
    try:
        seconds = read_duration(rest)
    except ValueError as error:
        raise OptionError(f"--rest must be a time, as 90s or 10m, not {rest!r}: {error}") from None
    _set_breaker(config, task, key, open_breaker(task, key=key, rest=seconds), "opened", json=json)


def close(config: Config, task: _Task, *, key: _Key = None, json: Json = False) -> None:
    """Close the breaker of a task, or of one key of it: its jobs start again.

    sa-jobqueue limits close shop.send
    """
    _set_breaker(config, task, key, close_breaker(task, key=key), "closed", json=json)


def _set_breaker(
    config: Config, task: str, key: str | None, statement: sa.Executable, done: str, *, json: bool
) -> None:
    with transaction(config) as connection:
        touched = bool(connection.scalar(statement))
        unknown = done == "opened" and not _served(connection, Target(name=task, task=True))
    of = f"the breaker of task {task}" + ("" if key is None else f", key {key}")
    if json:
        print_json({"action": done, "task": task, "key": key, "touched": touched})
    elif touched:
        say(cleaned(f"{done} {of}"))
    else:
        note(cleaned(f"{of} is closed already"))
    if unknown and not json:
        note("no live worker knows a task of this name")
    if not touched:
        raise typer.Exit(1)


def pause_(
    config: Config,
    target: Target,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="The reason that `limits list` shows.")] = None,
    json: Json = False,
) -> None:
    """Pause a queue, a task, or one key of it: none of its jobs start until it is resumed, even after a deployment.

    Running jobs go on, and jobs can be enqueued.

    sa-jobqueue pause mail --reason "the provider is down"
    sa-jobqueue pause sync --key 42
    """
    _act(config, target, pause(target.name, reason=reason, **target.options), "paused", json=json)


def resume_(config: Config, target: Target, *, json: Json = False) -> None:
    """Resume a paused queue, a task, or one key of it.

    sa-jobqueue resume mail
    sa-jobqueue resume sync --key 42
    """
    _act(config, target, resume(target.name, **target.options), "resumed", json=json, unchanged="is not paused")


def _act(
    config: Config,
    target: Target,
    statement: sa.Executable,
    done: str,
    *,
    json: bool,
    unchanged: str = "",
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Execute the statement and print what was done; exit code 1 if nothing was."""
    with transaction(config) as connection:
        touched = bool(connection.scalars(statement).all())
        unserved = (not touched or done in {"set", "paused"}) and not _served(connection, target)
    if json:
        result = {"action": done, "owner": target.owner, "name": target.name, "key": target.key, "touched": touched}
        result |= {"of": target.of} if isinstance(target, ValueTarget) and target.of is not None else {}
        print_json(result if changes is None else {**result, "changes": dict(changes)})
    elif touched:
        say(cleaned(f"{done} {'limits of ' if done in {'set', 'removed'} else ''}{target}"))
    else:
        note(f"{target} {unchanged}")
    if unserved and not json:
        wrong_queue, wrong_task = (
            "serves a queue of this name; for a task add",
            "knows a task of this name; for a queue omit",
        )
        note(f"no live worker {wrong_task if target.task else wrong_queue} --task")
    if not touched:
        raise typer.Exit(1)


def _served(connection: sa.Connection, target: Target) -> bool:
    """Whether a live worker serves the queue or knows the task; true without live workers, or if a worker lists no tasks."""
    live = [worker for worker in connection.execute(list_workers()) if not worker.stale]
    if not live or target.owner == "queue":
        return not live or any(serves(worker.queues, target.name) for worker in live)
    known = connection.scalars(sa.select(WorkerRow.tasks).where(WorkerRow.id.in_([worker.id for worker in live]))).all()
    return not all(known) or any(
        target.name in (name, *about.get("aliases", ())) for tasks in known for name, about in tasks.items()
    )


def _number(text: str, option: str) -> int | None:
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{option} must be a whole number or none, not {text!r}") from None


def _rate(text: str | None, burst: int | None, prefix: str) -> dict[str, Any]:
    """The columns of a rate like "500/1m"; no columns if it is not given."""
    option, burst_option = (f"--{prefix}{name}".replace("_", "-") for name in ("rate", "burst"))
    if text is None or text.lower() == "none":
        if burst is not None:
            raise ConfigurationError(f"{burst_option} belongs to a rate: give {option} with it")
        return {} if text is None else rate_columns(None, prefix)
    try:
        rate = read_rate(text, burst=burst)
    except OptionError:
        raise
    except ValueError:
        raise OptionError(
            f"{option} must be a number and a time, as in 500/1m or 20/s, or none, not {text!r}"
        ) from None
    return rate_columns(rate, prefix)


# ---- How a limit is shown.


def _as_json(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "now"} | {"pause_reason": masked(row["pause_reason"])}


def _line(row: Any) -> tuple[object, ...]:
    of = f"{row['owner']} {row['name']}" if row["key"] is None else f"  {row['of'] or 'key'} {row['key']}"
    running = f"{row['runs']:,}" + ("" if row["running"] is None else f" of {row['running']:,}")
    return of, running, capped(row["waits"]), _rate_text(row, ""), _of_each_key(row), _note(row)


def _narrow_line(line: tuple[object, ...], row: Any) -> tuple[object, ...]:
    rate, of_each_key, note = map(str, line[3:])
    if of_each_key and row["key"] is None:
        of_each_key = f"each key: {of_each_key}"
    return *line[:3], "\n".join(filter(None, (rate, of_each_key, note)))


def _rate_text(row: Any, prefix: str) -> str:
    return rates_said(row, prefix)


def _of_each_key(row: Any) -> str:
    if row["key"] is not None:
        return "" if row["weight"] == 1 else f"weight {row['weight']}"
    limits = [
        "" if row["key_running"] is None else f"{row['key_running']:,} running",
        _rate_text(row, "key_"),
        "strict" if row["strict"] else "",
        "" if row["max_waiting"] is None else f"{row['max_waiting']:,} waiting",
        "" if row["when_full"] == "wait" else f"if full {row['when_full']}",
        "" if row["share"] == "starts" else f"equal {row['share']}",
        *per_said(row["per"]),
    ]
    return ", ".join(filter(None, limits))


def _note(row: Any) -> str:
    notes: list[str] = []
    if row["paused_at"] is not None:
        since = f"paused {age((row['now'] - row['paused_at']).total_seconds(), short=True)} ago"
        notes.append(f"{since}: {row['pause_reason']}" if row["pause_reason"] else since)
    if row["broken_until"] is not None:
        left = (row["broken_until"] - row["now"]).total_seconds()
        notes.append(f"breaker open for {age(left, short=True)}" if left > 0 else "breaker probes")
    if row["blocked_until"] is not None and row["blocked_until"] > row["now"]:
        left = age((row["blocked_until"] - row["now"]).total_seconds(), short=True)
        notes.append(f"rate limited by the other side, for {left}")
    if row["held"]:
        notes.append("held")
    return cleaned(one_line(mask_passwords("; ".join(notes))))
