"""Unique jobs: of the jobs with one key, one is kept at a time.

>>> once = Unique(by=("order_id",))
>>> print(once.rule("shop.send_receipt", '{"order_id": 7, "copy": true}'))
{"key":"shop.send_receipt:c95fd7f09ac6e1adb7d729d1"}
>>> print(Unique("tenant 3: rebuild", scope="queued").rule("shop.rebuild", "{}"))
{"key":"tenant 3: rebuild","scope":"queued"}

The rule travels with the job, in the column `uniqueness`; a trigger of the schema takes the key when the job is inserted. So it
holds for every INSERT, plain SQL and COPY included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from .durations import Duration, checked_duration
from .errors import OptionError
from .payload import load, shown, unstorable_text

__all__ = ["MAX_KEY", "Clash", "Replaceable", "Scope", "Unique", "debounced", "key_in"]

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
    """What makes a job unique, for how long, and what becomes of another one with the same key.

    `key`: the key itself, shared by all tasks that give it; 1 to 500 characters. Without it the key is made of the task's name
    and the arguments named in `by`, or of all arguments; `by=()` is one job of the task at a time.

    `scope`, until when the key is taken: "queued", until the job is started; "started", until it has ended, through all retries;
    "finished", for `period` after its end; "window", for `period` from its enqueueing. `period`: seconds or a timedelta.

    `on_clash`, what becomes of a job whose key is taken: "skip", it is written as cancelled, with `duplicate_of`; "replace", the
    same, and the job that holds the key takes over what `replace` names of its arguments, time and priority, if it is still
    queued and of the same task; "raise", the INSERT fails, as one does that breaks a unique constraint.

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
        return self._said(self._key(task, args, defaults))

    def shared(self) -> str:
        """What the rules of all its jobs say beside their keys, as JSON text."""
        rest = load(self._said(""))
        del rest["key"]
        return json.dumps(rest, separators=(",", ":"))

    def _said(self, key: str) -> str:
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
        return f"{task}:{_digest({name: given[name] for name in names})}"


def debounced(task: str, key: str | None, max_wait: float | None) -> str:
    """The rule for a job that takes the place of the one that waits, as JSON text: of the same task, and the same `key` if there is one.

    `max_wait`: seconds after the first one was enqueued beyond which its time is not moved; None: however long.
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
    """The same for equal values in every process, release and language: SHA-256 of the JSON with sorted keys and no blanks."""
    text = json.dumps(_plain(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _plain(value: Any) -> Any:
    """`value` with whole numbers as integers: 1.0 is equal to 1, and -0.0 to 0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


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
