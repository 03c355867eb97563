"""The options of a job: queue, priority, number of attempts, time, labels. They are checked before any SQL.

>>> checked_int(4, "priority", 0, 9, OptionError)
4
>>> checked_int(40, "priority", 0, 9, OptionError)
Traceback (most recent call last):
sa_jobqueue.errors.OptionError: priority must be an integer from 0 to 9, not 40
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeAlias, cast, get_args

from ..arguments.objects import About, ObjectText, PendingArguments, about, checked_about
from ..arguments.secrets import is_marked
from ..arguments.storable import encode_plain, load, shown, unstorable_text
from ..arguments.subjects import Subject
from ..errors import JobQueueError, OptionError, PayloadError, SubjectError
from ..models import AT_ONCE, TASK_GROUP, JobMixin, checked_due
from ..rules.limits import MOST_KEYS, checked_of, checked_units
from ..rules.retry import Duration, checked_duration
from ..util.urls import SECRET, SENSITIVE
from .calls import Call
from .followups import check_keys, with_extras, with_follow_ups
from .middleware import before_enqueue, installed

#: Characters of a key.
MAX_KEY = 500

Scope: TypeAlias = Literal["queued", "started", "finished", "window"]
Clash: TypeAlias = Literal["skip", "replace", "raise"]
Replaceable: TypeAlias = Literal["args", "run_at", "priority"]

_KEEPS = ("finished", "window")

#: What "replace" replaces unless the caller says.
_REPLACED: tuple[Replaceable, ...] = ("args", "run_at", "priority")

#: Up to here a float and an integer are the same number in every language.
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class Unique:
    """What makes a job unique, for how long, and what happens to another job with the same key.

    `key`: the key itself, shared by all tasks that give it; 1 to 500 characters. Without it the key is made of the task's name
    and the arguments named in `by`, or of all arguments; `by=()` is one job of the task at a time.

    `scope`, until when the key is taken: "queued", until the job is started; "started", until it has ended, through all retries;
    "finished", for `period` after its end; "window", for `period` from its enqueueing. `period`: seconds or a timedelta.

    `on_clash`, what becomes of a job whose key is taken: "skip", it is written as cancelled, with `duplicate_of`; "replace", the
    same, and the job that holds the key takes over what `replace` names of its arguments, time and priority, if it is still
    queued and of the same task; "raise", the INSERT fails, as for a unique constraint.

    Raises OptionError for anything else.
    """

    key: str | None = None
    by: tuple[str, ...] | None = None
    scope: Scope = "started"
    period: Duration | None = None
    on_clash: Clash = "skip"
    replace: tuple[Replaceable, ...] = _REPLACED

    def __post_init__(self) -> None:
        if self.key is not None:
            _check_key(self.key)
            if self.by is not None:
                raise OptionError("unique: key and by exclude each other: give one of them")
        if self.by is not None:
            object.__setattr__(self, "by", _names(self.by, "by", None))
        object.__setattr__(self, "replace", _names(self.replace, "replace", get_args(Replaceable)))
        for name, value, allowed in (
            ("scope", self.scope, get_args(Scope)), ("on_clash", self.on_clash, get_args(Clash))
        ):  # fmt: skip
            if value not in allowed:
                raise OptionError(f"unique: {name} must be one of {', '.join(allowed)}, not {shown(value)}")
        if self.on_clash != "replace" and self.replace != _REPLACED:
            raise OptionError(f'unique: replace is for on_clash="replace" only, not for {self.on_clash!r}')
        if (self.period is not None) != (self.scope in _KEEPS):
            needs = "needs a period" if self.scope in _KEEPS else "takes no period"
            raise OptionError(f"unique: the scope {self.scope!r} {needs}, in seconds or as a timedelta")
        if self.period is not None:
            object.__setattr__(self, "period", checked_duration(self.period, "unique: period"))

    def rule(self, task: str, args: str, defaults: Mapping[str, Any] | None = None) -> str:
        """The rule for one job, as JSON text: its key, and what is not as usual.

        `args`: the job's arguments, as JSON text. `defaults`: what the handler's parameters are where `args` does not say;
        None if they are not known. Raises OptionError for a name in `by` that is no argument.
        """
        return self._text(self._key(task, args, defaults))

    def shared(self) -> str:
        """The rules of all its jobs without their keys, as JSON text."""
        rest = load(self._text(""))
        del rest["key"]
        return json.dumps(rest, separators=(",", ":"))

    def _text(self, key: str) -> str:
        rule: dict[str, Any] = {"key": key}
        if self.scope != "started":
            rule["scope"] = self.scope
        if self.period is not None:
            rule["period"] = self.period
        if self.on_clash != "skip":
            rule["on_clash"] = self.on_clash
        if self.on_clash == "replace":
            rule["replace"] = list(self.replace)
        return json.dumps(rule, separators=(",", ":"))

    def _key(self, task: str, args: str, defaults: Mapping[str, Any] | None) -> str:
        if self.key is not None:
            return self.key
        if self.by == ():
            return task
        given = {**(defaults or {}), **load(args)}
        names = given if self.by is None else self.by
        if missing := [name for name in names if name not in given]:
            raise OptionError(
                f"unique: by names {missing[0]!r}, which is no argument of this job of {task!r}; it has "
                f"{', '.join(given) or 'none'}"
            )
        if hidden := [name for name in names if is_marked(given[name], SECRET) or is_marked(given[name], SENSITIVE)]:
            raise OptionError(
                f"unique: the key of a job of {task!r} cannot be made of {hidden[0]!r}, which is secret or sensitive, because readers of the key could "
                "guess the value: name other arguments, by=(...)"
            )
        return f"{task}:{_digest({name: given[name] for name in names})}"


def debounced(task: str, key: str | None, max_wait: float | None) -> str:
    """The rule for a job that replaces the waiting job, as JSON text: of the same task, and the same `key`, if any.

    `max_wait`: seconds after the first job was enqueued beyond which its time is not moved; None: without a limit.
    """
    # With the name so that no other task's name and key read the same.
    name = task.replace("%", "%25").replace(":", "%3A")
    unique = Unique(f"debounce:{name}" if key is None else f"debounce:{name}:{key}", scope="queued", on_clash="replace")
    rule = unique.rule(task, "{}")
    return rule if max_wait is None else json.dumps({**load(rule), "max_wait": max_wait}, separators=(",", ":"))


def key_in(rule: str | None) -> str:
    """The key in the text of a rule; "" where there is none."""
    return "" if rule is None else str(json.loads(rule)["key"])


def _digest(values: Mapping[str, Any]) -> str:
    """A digest that is equal for equal values in every process, release and language: SHA-256 of the JSON with sorted keys and no blanks."""
    text = json.dumps(_plain(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _plain(value: Any) -> Any:
    """`value` with whole numbers as integers: 1.0 is equal to 1, and -0.0 to 0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise OptionError(f"unique: key must be a text, not {shown(key)}")
    if reason := unstorable_text(key):
        raise OptionError(f"unique: the key {key[:80]!r} {reason}")
    if not 1 <= len(key) <= MAX_KEY:
        raise OptionError(f"unique: key must have 1 to {MAX_KEY} characters, not {len(key)}: {key[:40]!r}")


def _names(value: object, what: str, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise OptionError(f"unique: {what} must be a list of names, not {shown(value)}")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or (allowed is not None and name not in allowed):
            expected = "names of arguments" if allowed is None else f"some of {', '.join(allowed)}"
            raise OptionError(f"unique: {what} must be {expected}, not {shown(name)}")
    return names


#: Characters in the name of a task or of a queue.
MAX_NAME = 200

#: The priority that is served first. Priority 0 is served last.
MAX_PRIORITY = 9

#: The largest `max_attempts`: the column is a smallint.
MAX_ATTEMPTS = 32_767

#: The largest `units`: the column is a smallint.
MAX_UNITS = 32_767

#: The highest version of a task's arguments.
MAX_VERSION = 32_767


@dataclass(frozen=True, slots=True)
class Debounce:
    """How long a job waits for another job that replaces it, and how long at most in all; in seconds."""

    seconds: float
    max_wait: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The columns of the row other than name and arguments. Every value has been checked."""

    queue: str = "default"
    priority: int = 4
    max_attempts: int = 10
    run_at: datetime | timedelta = AT_ONCE
    tags: tuple[str, ...] = ()
    meta: str = "{}"
    """JSON text, with the tags."""
    unique: Unique | None = None
    expires: datetime | timedelta | None = None
    deadline: datetime | timedelta | None = None
    key: str | None = None
    units: int | None = None
    debounce: Debounce | None = None
    subject: About | None = None
    """None: the first argument that is an object; False: nothing."""
    extras: str | None = None
    """JSON text: see `Job.extras`."""
    columns: tuple[tuple[str, Any], ...] | None = None
    after: JobMixin | None = None
    """A job of the same session, which must complete first."""


class Enqueueable:
    """What `Task` and `TaskName` share: their options."""

    name: str
    _options: Options

    @property
    def queue(self) -> str:
        """The queue that its jobs go to."""
        return self._options.queue

    if not TYPE_CHECKING:  # to type checkers an attribute that is not there is an error

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") or name == "_sa_instance_state":  # which session.add(task) asks for
                from ..rules.hints import hint_of_method

                if found := hint_of_method(name, self._called):
                    message += f": {found}"
            raise AttributeError(message, name=name, obj=self)

    @property
    def _called(self) -> str:
        """How the caller's code is likely to name it."""
        known = vars(self)
        return known.get("__name__") or f"TaskName({known.get('name')!r})"

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: Duration | None = None,
        max_attempts: int | None = None,
        tags: Iterable[str] | None = None,
        meta: dict[str, Any] | None = None,
        unique: Unique | Literal[False] | None = None,
        expires_at: datetime | None = None,
        expires_in: Duration | Literal[False] | None = None,
        deadline: Duration | datetime | Literal[False] | None = None,
        key: str | Literal[False] | None = None,
        units: int | Mapping[str, int] | None = None,
        keys: Mapping[str, str] | None = None,
        debounce: Duration | Literal[False] | None = None,
        max_wait: Duration | None = None,
        subject: object | Subject | Literal[False] | None = None,
        columns: Mapping[str, Any] | None = None,
        after: JobMixin | Literal[False] | None = None,
        on_failure: Enqueueable | Literal[False] | None = None,
        on_success: Enqueueable | Literal[False] | None = None,
        **unknown: Never,
    ) -> Self:
        """A copy with these options changed; the others stay as they are.

        `queue`: 1 to 200 characters. `priority`: 0 to 9, higher first. `run_at`: a datetime with a time zone, or
        `delay`: seconds or a timedelta, counted by the database from its now(). `max_attempts`: 1 to 32,767.
        `meta`: plain JSON that is stored with the job; it replaces an earlier `meta`. `tags`: kept as `meta["tags"]`.
        `unique`: see `Unique`; False: as many jobs as there are calls.
        `expires_in`: seconds or a timedelta from the enqueueing, or `expires_at`, a datetime with a time zone: if no attempt has
        been made by then, the job is cancelled; a snooze gives its attempt back. `deadline`: the same, as a duration or a datetime,
        for all attempts together: no attempt begins after it, and a running attempt is stopped at it. False: no such limit.
        `key`: by which the job is ordered, limited and served in turn, 1 to 200 characters; False: none. `units`: the units that
        the job takes from a rate, 1 to 32,767; or named units, such as {"tokens": 1800}, 1 to 999,999,999 each, which replace earlier named units; {}: none.
        `keys`: other keys by their names, as in {"provider": "openai"}, up to 10 of 1 to 200 characters: they only limit, by `Limits(per=...)`. They
        need a `key` beside them, and replace earlier ones; {}: none.
        `debounce`: the job is due after this time, in seconds or as a timedelta; if the task is called again while it waits, with
        the same `key`, if any, it takes the new arguments and waits for that time again, but not longer than `max_wait` after
        it was enqueued. The later call's own job is cancelled, as a duplicate. False: no such wait.
        `subject`: what the job is about, an object of a mapped class or a `Subject`, see `jobs_relationship`; without it, the first
        argument that is an object. False: nothing.
        `columns`: values of your own columns of your job table, by attribute: see `JobMixin`. They replace earlier ones.
        `after`: a new job of the session, which must complete first. Both jobs become
        members of a workflow. `on_failure`, `on_success`: the follow-up of the job, see `task`; False: none.

        Raises OptionError for any other value, and for any other option.
        """
        if unknown:
            from ..rules.hints import unknown_option

            takes: Any = Enqueueable.options
            raise OptionError(unknown_option(next(iter(unknown)), self._called, takes.__kwdefaults__))
        changes: dict[str, Any] = {}
        if queue is not None:
            changes["queue"] = checked_name(queue, "queue", OptionError)
        if priority is not None:
            changes["priority"] = checked_int(priority, "priority", 0, MAX_PRIORITY, OptionError)
        if max_attempts is not None:
            changes["max_attempts"] = checked_int(max_attempts, "max_attempts", 1, MAX_ATTEMPTS, OptionError)
        if run_at is not None or delay is not None:
            changes["run_at"] = _checked_due(run_at, delay)
        if tags is not None or meta is not None:
            changes |= _checked_meta(self._options, tags, meta)
        if unique is not None:
            changes["unique"] = checked_unique(unique, OptionError)
        if expires_at is not None or expires_in is not None:
            changes["expires"] = _checked_expiry(expires_at, expires_in)
        if deadline is not None:
            changes["deadline"] = checked_limit(deadline, "deadline", OptionError)
        if not (keys is None and key is units is debounce is max_wait is None):
            changes |= _checked_turn(self._options, key, units, keys, debounce=debounce, max_wait=max_wait)
        if any(given is not None for given in (subject, columns, after, on_failure, on_success)):
            changes |= _checked_beside(subject, columns, after)
            followed = {"on_failure": on_failure, "on_success": on_success}
            record = vars(self).get("record")  # a task's
            changes["extras"] = with_follow_ups(
                changes.get("extras", self._options.extras), followed, OptionError, record=record
            )
        changed = object.__new__(type(self))
        vars(changed).update(vars(self))
        changed._options = replace(self._options, **changes)
        _check_alone(changed._options)
        return changed

    @property
    def chosen(self) -> Options:
        """The options that its jobs have, checked."""
        return self._options

    def template(self) -> Call:
        """The call that all rows of an `enqueue_select` share: options only, without arguments and a unique key."""
        wait = self._options.debounce
        alike = self.options(unique=False, debounce=False, delay=None if wait is None else wait.seconds)
        return alike._make_call("{}").completed()  # noqa: SLF001  # its own class

    def _make_call(self, args: str, *, plain: bool = False) -> Call:
        """The call to enqueue; `plain`: past all middleware."""
        options = self._options
        due, rule = options.run_at, None
        subject: Subject | None = None
        waiting: PendingArguments | None = None
        if options.subject or type(args) is ObjectText:
            args, subject, waiting = self._about(args)
        if plain:
            if options.after is not None:
                raise OptionError(f"a schedule's jobs cannot wait for another job: set after=False for {self.name!r}")
            if options.subject:
                raise OptionError(f"a schedule enqueues {self.name!r} without a subject: take it off, subject=False")
            if waiting is not None:
                args, waiting = waiting.completed(args, versioned=False), None
            subject = None
        if options.unique is not None:
            rule = options.unique.rule(self.name, args, self._defaults())
        if options.debounce is not None:
            due = timedelta(seconds=options.debounce.seconds)
            rule = debounced(self.name, options.key, options.debounce.max_wait)
        if options.expires is not None or options.deadline is not None:
            _check_order(options, due)
        call = Call(
            self.name, args, options.queue, options.priority, options.max_attempts, due, options.meta, rule,
            options.expires, options.deadline, options.key, options.units, subject, options.extras, options.columns,
            options.after, waiting,
        )  # fmt: skip
        if installed.enqueueing and not plain:
            call = before_enqueue(call)
        if call.extras is not None and call.key is None:
            check_keys(f"task {self.name!r}", call.key, call.extras, OptionError)
        return call

    def _about(self, args: str) -> tuple[str, Subject | None, PendingArguments | None]:
        unique, defaults = self._options.unique, self._defaults()
        rule = None if unique is None else partial(unique.rule, self.name, defaults=defaults)
        return about(self.name, args, self._options.subject, rule)

    def _defaults(self) -> Mapping[str, Any] | None:
        """What the parameters are that a call does not give, as plain JSON; None if that is not known."""
        return None


def checked_unique(value: object, error: type[JobQueueError]) -> Unique | None:
    """`value` if it says how jobs are unique, None for False; else raise `error`."""
    if value is False:
        return None
    if not isinstance(value, Unique):
        raise error(f"unique must be a Unique(...) or False, not {shown(value)}")
    return value


def checked_name(value: object, what: str, error: type[JobQueueError]) -> str:
    """`value` if it can be the name of a queue, a task or a tag; else raise `error`, which calls it `what`."""
    if not isinstance(value, str):
        raise error(f"{what} must be a string, not {shown(value)}")
    if reason := unstorable_text(value):
        raise error(f"{what} {value[:80]!r} {reason}")
    if not 1 <= len(value) <= MAX_NAME:
        raise error(f"{what} must have 1 to {MAX_NAME} characters, not {len(value)}: {value[:40]!r}")
    if value == "*" and what == "queue":
        raise error("queue '*' is refused: among a worker's queues it stands for all the others, so name one")
    return str.__str__(value)  # of a `class Queue(str, Enum)` the value, not "Queue.MAIL"


def checked_key(value: object, what: str = "key") -> str:
    """`value` if jobs can have it as their key, or as another key; else raise OptionError, which calls it `what`."""
    key = checked_name(value, what, OptionError)
    if key.startswith(TASK_GROUP):
        raise OptionError(
            f"{what} {key[:40]!r} must not begin with {TASK_GROUP!r}, which the queue's own keys begin with"
        )
    return key


def checked_keys(value: object) -> dict[str, str]:
    """`value` if jobs can have it as their other keys; else raise OptionError."""
    if not isinstance(value, Mapping) or len(value) > MOST_KEYS:
        raise OptionError(
            f'keys must be a dict of up to {MOST_KEYS} keys, as {{"provider": "openai"}}, not {shown(value)}'
        )
    return {checked_of(name): checked_key(key, f"keys: {name}") for name, key in value.items()}


def checked_int(value: object, what: str, low: int, high: int, error: type[JobQueueError]) -> int:
    """`value` if it is an integer (no bool) from `low` to `high`; else raise `error`, which calls it `what`."""
    if type(value) is not int or not low <= value <= high:
        raise error(f"{what} must be an integer from {low} to {high:,}, not {shown(value)}")
    return value


def extras_of(version: object, error: type[JobQueueError]) -> str | None:
    """The `extras` of a job with this version, JSON text; None for version 1. Raises `error` for an invalid version."""
    checked = checked_int(version, "version", 1, MAX_VERSION, error)
    return None if checked == 1 else f'{{"version":{checked}}}'


def checked_limit(value: object, what: str, error: type[JobQueueError]) -> datetime | timedelta | None:
    """`value`, seconds, a timedelta or a datetime with a zone, as a time or a delay; None for False; else raise `error`."""
    if value is False:
        return None
    if isinstance(value, datetime):
        try:
            return checked_due(value, what)
        except OptionError as reason:
            raise error(str(reason)) from reason
    seconds = checked_duration(cast(Duration, value), what, error)
    if seconds == 0:
        raise error(f"{what} must be more than 0 seconds; False means no limit")
    return timedelta(seconds=seconds)


def _checked_expiry(expires_at: object, expires_in: object) -> datetime | timedelta | None:
    if expires_at is None:
        if isinstance(expires_in, datetime):
            raise OptionError(
                f"expires_in must be seconds or a timedelta, not {shown(expires_in)}; for a time there is expires_at="
            )
        return checked_limit(expires_in, "expires_in", OptionError)
    if expires_in is not None:
        raise OptionError("expires_at and expires_in exclude each other: give one of them")
    if not isinstance(expires_at, datetime):
        raise OptionError(
            f"expires_at must be a datetime, not {shown(expires_at)}; for a duration there is expires_in="
        )
    return checked_due(expires_at, "expires_at")


def _checked_beside(subject: object, columns: object, after: object) -> dict[str, Any]:
    """What it is about, and what an own job table has besides."""
    changes: dict[str, Any] = {}
    if subject is not None:
        changes["subject"] = _checked_subject(subject)
    if columns is not None:
        changes["columns"] = _checked_columns(columns)
    if after is not None:
        if after is not False and not isinstance(after, JobMixin):
            raise OptionError(f"after must be a job, enqueue(...), or False, not {shown(after)}")
        changes["after"] = after or None
    return changes


def _checked_subject(value: object) -> About:
    try:
        return checked_about(value)
    except (SubjectError, PayloadError) as error:
        raise OptionError(str(error)) from error


def _checked_turn(
    old: Options, key: object, units: object, keys: object, *, debounce: object, max_wait: object
) -> dict[str, Any]:
    """What says whose turn it is, and when."""
    changes: dict[str, Any] = {}
    if key is not None:
        changes["key"] = None if key is False else checked_key(key)
    extras: dict[str, Any] = {}
    if isinstance(units, Mapping):
        extras["units"] = checked_units(units) or None
    elif units is not None:
        changes["units"] = checked_int(units, "units", 1, MAX_UNITS, OptionError)
    if keys is not None:
        extras["keys"] = checked_keys(keys) or None
    if extras:
        changes["extras"] = with_extras(old.extras, extras)
    if debounce is not None or max_wait is not None:
        changes["debounce"] = _checked_debounce(old.debounce, debounce, max_wait)
    return changes


def _checked_debounce(before: Debounce | None, debounce: object, max_wait: object) -> Debounce | None:
    if debounce is False:
        if max_wait is not None:
            raise OptionError("max_wait is that of a debounce, which debounce=False takes off")
        return None
    if debounce is not None:
        most = None if before is None else before.max_wait
        before = Debounce(_positive(debounce, "debounce", "; False means no wait"), most)
    if before is None:
        raise OptionError("max_wait is that of a debounce: give debounce=... with it")
    made = before if max_wait is None else replace(before, max_wait=_positive(max_wait, "max_wait"))
    if made.max_wait is not None and made.max_wait < made.seconds:
        raise OptionError(f"max_wait, {made.max_wait:g} s, must not be shorter than debounce, {made.seconds:g} s")
    return made


def _positive(value: object, what: str, mend: str = "") -> float:
    seconds = checked_duration(cast(Duration, value), what)
    if seconds == 0:
        raise OptionError(f"{what} must be more than 0 seconds{mend}")
    return seconds


def _check_alone(options: Options) -> None:
    """Refuse what says the same as a debounce, in another way."""
    if options.debounce is None:
        return
    if options.unique is not None:
        raise OptionError(
            "unique and debounce exclude each other: give one of them; unique=False takes a task's own rule off"
        )
    if options.run_at != AT_ONCE:
        raise OptionError("debounce says when the job is due: give it no run_at and no delay")


def _check_order(options: Options, due: datetime | timedelta) -> None:
    """Refuse a job that could not be started in time. Where one limit is a time and the due time a delay, only the database could tell."""
    for what, limit in (("expires", options.expires), ("has its deadline", options.deadline)):
        if (isinstance(limit, datetime) and isinstance(due, datetime) and limit <= due) or (
            isinstance(limit, timedelta) and isinstance(due, timedelta) and limit <= due
        ):
            raise OptionError(f"the job {what} at {limit}, which is not after the time at which it is due, {due}")


def _checked_columns(given: object) -> tuple[tuple[str, Any], ...] | None:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(f"columns must be a dict of values by the names of your job's attributes, not {shown(given)}")
    return tuple(cast(Mapping[str, Any], given).items()) or None


def _checked_due(run_at: datetime | None, delay: Duration | None) -> datetime | timedelta:
    if delay is not None:
        if run_at is not None:
            raise OptionError("run_at and delay exclude each other: give one of them")
        return timedelta(seconds=checked_duration(delay, "delay"))
    if not isinstance(run_at, datetime):
        raise OptionError(f"run_at must be a datetime, not {shown(run_at)}; for a duration there is delay=")
    return checked_due(run_at)


def _checked_meta(old: Options, tags: Iterable[str] | None, meta: object) -> dict[str, Any]:
    if tags is None:
        labels = old.tags
    elif isinstance(tags, str) or not isinstance(tags, Iterable):
        raise OptionError(f"tags must be a list of strings, not {shown(tags)}")
    else:
        labels = tuple(checked_name(tag, "a tag", OptionError) for tag in tags)
    entries: dict[str, Any]
    if meta is None:
        entries = {key: value for key, value in load(old.meta).items() if key != "tags"}
    elif isinstance(meta, dict):
        entries = dict(cast(dict[str, Any], meta))
    else:
        raise OptionError(f"meta must be a dict, not {shown(meta)}")
    if "tags" in entries:
        raise OptionError('meta["tags"] is where tags are stored: give them as tags=[...]')
    if labels:
        entries["tags"] = list(labels)
    try:
        return {"tags": labels, "meta": encode_plain(entries, what="meta", item="")}
    except PayloadError as error:
        raise OptionError(str(error)) from error
