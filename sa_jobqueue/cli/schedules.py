"""The commands of `schedule`: list schedules and their next times; add, pause, resume, run, backfill and remove them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import islice
from typing import Annotated, Any, NoReturn, get_args

import sqlalchemy as sa
import typer
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..enqueueing.backfill import plan_backfill
from ..errors import ConfigurationError, OptionError
from ..models import Overlap, Schedule
from ..rules.schedules import Cron, Every, Missed, coming_ticks, every, rule_of, state_of, zone_of
from ..rules.words import age, jobs_of
from ..statements import list_schedules, pause_schedules, remove_schedules, resume_schedules, run_schedules
from ..util.log import one_line
from ..util.urls import mask_passwords, masked, without_secrets
from .config import Config, DryRun, Json, duration_option, parse_duration, parse_moment
from .enqueue import CallOptions, call_of
from .output import Column, cleaned, fail, moment, note, print_json, print_table, say
from .place import transaction


def _parse_name(text: str) -> str:
    if not 1 <= len(text) <= 200:
        raise typer.BadParameter(f"a schedule's name has 1 to 200 characters, not {len(text)}")
    return text


Name = Annotated[str, typer.Argument(metavar="NAME", parser=_parse_name, help="The schedule's name.")]

_COLUMNS = (
    Column("schedule", wide=True, least=12),
    Column("rule", wide=True, least=10),
    Column("zone", optional=True),
    Column("next"),
    Column("last job", shortened=lambda text: text.partition(" ")[0]),
    Column("note", wide=True, least=16),
)


def list_(config: Config, *, json: Json = False) -> None:
    """List schedules: the next time, the last job, and why a schedule is paused or cannot be used.

    The last job is an unfinished job, if there is any. Times are from now.

    sa-jobqueue schedule list
    sa-jobqueue schedule list --json
    """
    with transaction(config) as connection:
        rows = connection.execute(list_schedules()).mappings().all()
    if json:
        print_json([_as_json(row) for row in rows])
        return
    if not rows:
        note("no schedules; make one with `sa-jobqueue schedule add`, or in code with registry.schedule(...)")
        return
    print_table(_COLUMNS, map(_line, rows), styles=list(map(_style, rows)))


def next_(
    config: Config,
    name: Name,
    *,
    number: Annotated[int, typer.Option("--number", "-n", metavar="N", min=1, max=1_000, help="Show N times.")] = 5,
    json: Json = False,
) -> None:
    """Show the next times of a schedule, in its own zone and in UTC.

    sa-jobqueue schedule next shop.daily_report -n 10
    """
    with transaction(config) as connection:
        row = connection.execute(list_schedules().where(Schedule.name == name)).mappings().one_or_none()
    if row is None:
        _no_schedule(name)
    rule = rule_of(row["expression"], row["timezone"])
    zone = zone_of(rule)
    times = list(islice(coming_ticks(rule, row), number))
    if json:
        print_json([{"utc": at, "local": at.astimezone(zone)} for at in times])
        return
    columns = [Column(rule.timezone if isinstance(rule, Cron) else "UTC"), Column("UTC"), Column("when")]
    lines = [[_local(at.astimezone(zone)), f"{at:%Y-%m-%d %H:%M:%S}", _distance(at, row["now"])] for at in times]
    if zone is UTC:
        columns, lines = [columns[0], columns[2]], [[line[0], line[2]] for line in lines]
    print_table(columns, lines)
    if reason := _note(row):
        note(f"paused: {reason}; the times count from now" if row["paused_at"] is not None else reason)


def _no_schedule(name: str) -> NoReturn:
    fail(f"there is no schedule {name!r}: `sa-jobqueue schedule list` lists all schedules", 1)


def _local(at: datetime) -> str:
    offset = f"{at:%z}"
    return f"{at:%a %Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]}"


def _distance(at: datetime, now: datetime, *, short: bool = False) -> str:
    seconds = (at - now).total_seconds()
    return f"{'in' if seconds > 0 else 'due'} {age(seconds, short=short)}"


def _as_json(row: Any) -> dict[str, Any]:
    last = {key: row[f"job_{key}"] for key in ("id", "status", "created_at", "finished_at")}
    own = {key: value for key, value in row.items() if not key.startswith("job_") and key != "now"}
    own |= {
        "args": without_secrets(row["args"]),
        "error": masked(row["error"]),
        "pause_reason": masked(row["pause_reason"]),
    }
    return own | {"state": state_of(row), "last_job": None if last["id"] is None else last}


def _line(row: Any) -> tuple[object, ...]:
    when = _when(row) if state_of(row) == "active" else "paused" if state_of(row) == "paused" else ""
    last = ""
    if row["job_id"] is not None:
        since = row["job_finished_at"] or row["job_created_at"]
        last = f"{row['job_status']} {age((row['now'] - since).total_seconds(), short=True)}"
        last += " ago" if row["job_finished_at"] is not None else ""
    rule = " ".join(row["expression"].split())
    zone = "" if rule.startswith("every ") else row["timezone"]
    return row["name"], rule, zone, when, last, _note(row)


def _when(row: Any) -> str:
    try:
        at = next(coming_ticks(rule_of(row["expression"], row["timezone"]), row), None)
    except OptionError:
        return ""
    return "never" if at is None or at.year == 9_999 else _distance(at, row["now"], short=True)


def _note(row: Any) -> str:
    text = ""
    if row["error"] is not None:
        text = f"error: {row['error']}"
    elif row["paused_at"] is not None:
        since = f"{age((row['now'] - row['paused_at']).total_seconds(), short=True)} ago"
        text = f"{row['pause_reason']} ({since})" if row["pause_reason"] else since
    elif row["waiting_since"] is not None:
        text = f"waits for the end of job {row['job_id']}"
    return cleaned(one_line(mask_passwords(text)))


def _style(row: Any) -> str:
    style = {"bad": "red", "paused": "dim"}.get(state_of(row))
    return style or ("yellow" if row["job_status"] == "failed" else "")


# ---- Commands that change schedules.

_MISSED, _OVERLAP = ", ".join(get_args(Missed)), ", ".join(get_args(Overlap))

#: None, because click before 8.3 refuses an empty list as the default of an argument.
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="These schedules.", show_default=False)]
#: The most schedules that are listed by name.
_LISTED = 20
All = Annotated[bool, typer.Option("--all", help="All schedules.")]


def add(
    config: Config,
    *,
    rule: Annotated[str, typer.Argument(metavar="RULE", help='A cron expression, or "every 5m".')],
    given: CallOptions,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The schedule's name. Default: the task's.")] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="The zone of a cron expression, as in Europe/Vienna.")
    ] = "UTC",
    missed: Annotated[
        str, typer.Option(metavar="CHOICE", help=f"What happens to ticks that no worker served: {_MISSED}.")
    ] = "once",
    catch_up: Annotated[timedelta | None, duration_option(help="Leave out ticks longer ago: 45s, 10m, 2h.")] = None,
    overlap: Annotated[
        str, typer.Option(metavar="CHOICE", help=f"If a job is not finished at the next tick: {_OVERLAP}.")
    ] = "allow",
    jitter: Annotated[
        timedelta | None, duration_option(help="Delay each job by a random time of at most this long.")
    ] = None,
    pause_after: Annotated[int | None, typer.Option(metavar="N", help="Pause after N failed jobs in a row.")] = None,
    json: Json = False,
) -> None:
    """Make a schedule, and print its name.

    With --app the task must exist, and the arguments are checked against its handler. Without --app the worker checks them.

    sa-jobqueue schedule add "0 7 * * mon-fri" shop.report '{"region": "EU"}' --timezone Europe/Vienna
    sa-jobqueue schedule add "every 5m" shop.clean_up --overlap skip
    """
    call = call_of(config, given)
    options: dict[str, Any] = {
        "name": name, "timezone": timezone, "missed": missed, "catch_up": catch_up, "overlap": overlap,
        "jitter": jitter or 0.0, "pause_after": pause_after,
    }  # fmt: skip
    schedule = Schedule(_rule(rule), call, **options)
    parsed = rule_of(schedule.expression, schedule.timezone)
    name = schedule.name
    try:
        with transaction(config, make=True) as connection, Session(connection) as session:
            session.add(schedule)
            session.flush()
            first = parsed.after(schedule.counts_from)
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != "23505":
            raise
        fail(f"there is a schedule {name!r} already: remove it first, or choose another name with --name")
    if json:
        print_json({"name": name, "next_at": first})
        return
    say(cleaned(name))
    note(f"{call.task} · queue {call.queue} · {schedule.expression} · first at {moment(first)}")


def pause(
    config: Config,
    names: Names = None,
    *,
    all: All = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason that `list` shows.")
    ] = "paused by an operator",
    json: Json = False,
) -> None:
    """Pause schedules: they enqueue nothing until they are resumed, even if a new release is deployed meanwhile.

    Jobs that are already enqueued are not touched.

    sa-jobqueue schedule pause shop.daily_report --reason "the provider is down"
    """
    _act(config, names or [], partial(pause_schedules, reason=reason), done="paused", all=all, json=json)


def resume(config: Config, names: Names = None, *, all: All = False, json: Json = False) -> None:
    """Resume paused schedules, from now on: the ticks of the pause are left out.

    `backfill` enqueues their jobs if you want them after all.

    sa-jobqueue schedule resume shop.daily_report
    """
    _act(config, names or [], resume_schedules, done="resumed", all=all, json=json, unchanged="is not paused")


def remove(config: Config, names: Names = None, *, json: Json = False) -> None:
    """Delete schedules. Their jobs stay.

    A schedule that code declares comes back with the next worker that declares it: pause it instead.

    sa-jobqueue schedule remove old_report
    """
    _act(config, names or [], remove_schedules, done="removed", json=json)


def run(config: Config, name: Name, *, json: Json = False) -> None:
    """Enqueue a job of a schedule now, in addition to its ticks, even if it is paused. Print the job's id.

    sa-jobqueue schedule run shop.daily_report
    """
    with transaction(config) as connection:
        ids = list(connection.scalars(run_schedules(Schedule.name == name)))
    if not ids:
        _no_schedule(name)
    if json:
        print_json({"id": ids[0], "schedule": name})
        return
    typer.echo(ids[0])


def backfill(
    config: Config,
    name: Name,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="The first tick: 2030-01-31T09:00, in the schedule's zone or its own, or 2d for 2 days ago.",
        ),
    ],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Before this time. Default: now.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Enqueue a job for each tick of a range of time that has none.

    A tick whose job is still in the table is left out, so a second backfill enqueues nothing. All jobs are due at once, even if
    the schedule's overlap is skip or wait. Either all are enqueued or none. At most 100,000 ticks.

    sa-jobqueue schedule backfill shop.daily_report --from 2030-01-01 --to 2030-02-01 --dry-run
    """
    with transaction(config) as connection:
        row = connection.execute(
            sa.select(Schedule.expression, Schedule.timezone, sa.func.now().label("now")).where(Schedule.name == name)
        ).one_or_none()
        if row is None:
            _no_schedule(name)
        zone = zone_of(rule_of(row.expression, row.timezone))
        since = _time(start, "--from", zone, row.now)
        until = None if end is None else _time(end, "--to", zone, row.now)
        if until is not None and until <= since:
            raise OptionError(f"--to must be later than --from, not {end!r}")
        plan = plan_backfill(connection, name, since, until, lock=not dry_run)
        if plan is None:
            _no_schedule(name)
        if not dry_run:
            plan.enqueue(connection)
    ticks = plan.ticks
    first, last = (ticks[0], ticks[-1]) if ticks else (None, None)
    if json:
        print_json({
            "schedule": name, "count": len(ticks), "first": first, "last": last, "there": plan.there,
            "left_from": plan.left_from, "dry_run": dry_run,
        })  # fmt: skip
        return

    def local(at: datetime) -> str:
        return at.astimezone(zone).isoformat(sep=" ", timespec="seconds")

    between = ""
    if first is not None and last is not None:
        between = f", for {local(first)}" if len(ticks) == 1 else f", for {local(first)} to {local(last)}"
    say(f"{'would enqueue' if dry_run else 'enqueued'} {jobs_of(len(ticks))}{between}")
    if plan.there:
        note(f"ticks left out, because their jobs are in the table: {plan.there:,}")
    if plan.left_from is not None:
        note(f"ticks from {local(plan.left_from)} on are left to the workers")


def _act(
    config: Config,
    names: Sequence[str],
    build: Callable[[sa.ColumnElement[bool]], sa.Executable],
    *,
    done: str,
    json: bool,
    all: bool = False,
    unchanged: str = "no such schedule",
) -> None:
    """Act on schedules; print their names, and why the other given schedules were not touched."""
    if all and names:
        raise ConfigurationError("--all and names of schedules contradict each other: give one of them")
    if not all and not names:
        raise ConfigurationError("say which schedules, by their names" + ("" if done == "removed" else ", or --all"))
    chosen = sa.true() if all else Schedule.name == sa.func.any(sa.literal(list(names), sa.ARRAY(sa.Text)))
    with transaction(config) as connection:
        touched = sorted(connection.scalars(build(chosen)))
        known = set(connection.scalars(sa.select(Schedule.name).where(chosen))) if not all else set[str]()
    left = [name for name in dict.fromkeys(names) if name not in touched]
    untouched = {name: unchanged if name in known else "no such schedule" for name in left}
    if json:
        print_json({"action": done, "schedules": touched, "not_touched": untouched})
    else:
        which = ", ".join(touched) if len(touched) <= _LISTED else f"{len(touched):,} schedules"
        say(cleaned(f"{done} {which or 'no schedule'}"))
        if untouched:
            note("not touched: " + ", ".join(f"{name} ({reason})" for name, reason in untouched.items()))
    if untouched:
        raise typer.Exit(1)


def _rule(text: str) -> str | Every:
    """Parse "every 5m" as an interval; return a cron expression as it is."""
    words = text.split()
    if words[:1] != ["every"]:
        return text
    try:
        return every(parse_duration("".join(words[1:])))
    except typer.BadParameter as error:
        raise OptionError(f'an interval is given as "every 5m", "every 1h30m" or "every 300s", not {text!r}') from error


def _time(text: str, option: str, zone: tzinfo, now: datetime) -> datetime:
    """Parse a time, in `zone` if it names none, or a duration before now."""
    try:
        moment = parse_moment(text, zone)
        return moment if isinstance(moment, datetime) else now - moment
    except (typer.BadParameter, OverflowError):
        raise OptionError(
            f"{option} must be a time, as 2030-01-31 or 2030-01-31T09:00+01:00, or a duration before now, as 2d, not {text!r}"
        ) from None
