"""Templates and their filters, and values of jobs. Jinja escapes all values of rows; nothing is marked as safe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from typing import Any, cast
from urllib.parse import quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..arguments.subjects import Subject
from ..health.one_job import JobSeen
from ..rules.failures import moment_said
from ..rules.words import age, duration, estimated, size
from ..sql.readings.depths import capped
from ..util.log import get_logger, one_line
from ..util.urls import mask_passwords, masked, without_secrets
from ..version import __version__
from .query import Query
from .request import FormatArgs, LinkSubject, Part

#: A time in a sentence, as `JobExplanation.distant` writes it.
_TIMES = re.compile(
    r"([0-9]{4}-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9][+-][0-1][0-9]:[0-5][0-9] \([^()]*\))", re.ASCII
)
#: Characters of a text of a row that a line shows.
_LINE = 200


class Renderer:
    """Renders the pages of a dashboard."""

    def __init__(self, title: str) -> None:
        self._environment = environment()
        self._title = title

    def page(self, name: str, values: Mapping[str, Any], *, root: str, fragment: bool = False) -> str:
        """The page of this template; `fragment`: its live part alone. `root`: where the dashboard is mounted."""
        said = {
            "title": self._title,
            "url": _Urls(root),
            "layout": "fragment.html" if fragment else "base.html",
            **values,
        }
        return self._environment.get_template(name).render(said)


class _Urls:
    """Addresses below the place where the dashboard is mounted."""

    def __init__(self, root: str) -> None:
        self._root = root

    def __call__(self, path: str, query: Query | None = None, **values: Any) -> str:
        asked = (Query() if query is None else query).but(**values)
        address = f"{self._root}/{quote(path.lstrip('/'))}"
        return f"{address}?{asked}" if asked else address

    def to(self, address: str) -> str:
        """The address of a path, and perhaps its query, that are quoted already."""
        return f"{self._root}{address}"

    def static(self, name: str) -> str:
        """A file of ours; with the release, so that a browser keeps it until there is another."""
        return f"{self._root}/static/{name}?v={quote(__version__)}"


@cache
def environment() -> Environment:
    """The templates of this package."""
    made = Environment(
        loader=PackageLoader("sa_jobqueue.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    called: dict[str, Any] = {"Query": Query, "exact": _exact}
    made.globals.update(called)
    filters: dict[str, Any] = {
        "age": age, "ago": _ago, "capped": capped, "duration": duration, "estimated": estimated, "size": size, "number": _number, "iso": _iso,
        "clock": _clock, "pretty": _pretty, "compact": _compact, "line": _line, "data": _data,
        "moment": _moment, "timed": _timed,
    }  # fmt: skip
    made.filters.update(filters)
    return made


def local_path(given: str) -> str | None:
    """A path below the dashboard to which a form may lead back; None for anything else, such as an address of another site."""
    if not given.startswith("/") or given.startswith(("//", "/\\")) or any(ord(letter) < 32 for letter in given):
        return None
    return given


def _exact(fields: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Hidden fields of a form, with spaces at the ends of names kept."""
    return Query((name, str(value)) for name, value in fields).pairs()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _clock(moment: datetime | None) -> str:
    """A time in UTC, to the second; the page's script adds the time in the viewer's zone."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _moment(seconds: int) -> datetime:
    """The time of these seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def _ago(moment: datetime | None, now: datetime) -> str:
    """3m 20s ago; in 5s."""
    if moment is None:
        return ""
    seconds = (now - moment).total_seconds()
    return f"in {age(-seconds)}" if seconds <= -0.5 else f"{age(seconds)} ago"


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _compact(value: Any) -> str:
    return _line(json.dumps(value, ensure_ascii=False, default=str))


def _line(value: Any) -> str:
    """The first line of a text, cut off where it is long."""
    first = next(iter(str(value).strip().splitlines()), "")
    return first if len(first) <= _LINE else f"{first[:_LINE]}…"


def _timed(sentence: str) -> list[tuple[str, datetime | None]]:
    """The parts of a sentence from `JobExplanation`, each with its time, or None for plain text."""
    parts = _TIMES.split(sentence)
    times = [(text, datetime.fromisoformat(text[:25])) for text in parts[1::2]]
    return [*chain.from_iterable(zip(((text, None) for text in parts[::2]), times, strict=False)), (parts[-1], None)]


def _data(value: Any) -> str:
    """JSON for a `data-` attribute, which the page's script reads."""
    return json.dumps(value, separators=(",", ":"), default=str)


# ---- A job's own values: masked by the application, without passwords, and cut to a bearable length.

logger = get_logger(__name__)

#: Characters of a value that are shown.
_MOST = 20_000
#: Errors that are shown.
_ERRORS = 100


@dataclass(frozen=True, slots=True)
class Value:
    """Arguments, meta or a result as a page shows them."""

    said: str | None = None
    """Indented JSON; None if nothing is shown."""
    note: str = ""
    """Why it is missing or cut."""
    is_whole: bool = False
    """Whether it is the complete value of the row."""


def value_of(part: Part, seen: JobSeen, format_args: FormatArgs | None) -> Value:
    """A part of the job, as `format_args` returns it."""
    if part in seen.sizes:
        return Value(note=too_large(seen, part))
    return shown_value(part, seen.job.task, getattr(seen.job, part), format_args)


def shown_value(part: Part, task: str, given: Any, format_args: FormatArgs | None) -> Value:
    """A part of a job of this task, as `format_args` returns it. If that fails, nothing is shown, because it may hide secrets."""
    if given is None:
        return Value()
    try:
        before = _written(given)
        if format_args is not None:
            given = format_args(task, part, without_secrets(given))
        said = _written(masked(given))
    except Exception as error:  # of the application's function, or of what it returned
        logger.warning("format_args failed for the %s of a job of %r: %s", part, task, type(error).__name__)
        return Value(note=f"Not shown: format_args failed with {type(error).__name__}.")
    if len(said) > _MOST:
        return Value(said[:_MOST], f"The first {_MOST:,} of {len(said):,} characters.")
    return Value(said, is_whole=said == before)


def short_args(task: str, args: Any, format_args: FormatArgs | None) -> dict[str, str]:
    """The arguments of a job by name as short texts, as `format_args` returns them. If that fails, there are none."""
    shown = masked_by_name("args", task, args, format_args) or {}
    return {
        one_line(name): one_line(value if isinstance(value, str) else _compact(value)) for name, value in shown.items()
    }


def masked_by_name(part: Part, task: str, values: Any, format_args: FormatArgs | None) -> Mapping[str, Any] | None:
    """Arguments, or the columns of a row, as `format_args` returns them. None if that fails, because they may be secrets."""
    try:
        shown = masked(
            values if format_args is None or not values else format_args(task, part, without_secrets(values))
        )
    except Exception as error:  # of the application's function, or of what it returned
        logger.warning("format_args failed for the %s of a job of %r: %s", part, task, type(error).__name__)
        return None
    return cast(Mapping[str, Any], shown) if isinstance(shown, dict) else None


def too_large(seen: JobSeen, part: str) -> str:
    """The reason why a page does not show a part of the job."""
    return f"Too large to be shown, or not readable as text: {size(seen.sizes[part])} as it is stored."


def _written(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Failure:
    """An entry of a job's errors."""

    attempt: str
    at: Any
    name: str
    message: str
    traceback: str


def errors_of(seen: JobSeen) -> tuple[list[Failure], int]:
    """The errors of its last attempts, last first, and the number of omitted errors. Values that the application has written are shown as
    they are.
    """
    found: object = seen.job.errors
    entries = cast(Sequence[object], found if isinstance(found, list) else [] if found is None else [found])
    last = entries[-_ERRORS:]
    return [_failure(entry) for entry in reversed(last)], len(entries) - len(last)


def _failure(entry: object) -> Failure:
    if not isinstance(entry, dict):
        return Failure("?", None, "", mask_passwords(str(entry)), "")
    said = cast(dict[str, Any], entry)
    name, message, traceback = (mask_passwords(str(said.get(key) or "")) for key in ("type", "message", "traceback"))
    return Failure(str(said.get("attempt", "?")), moment_said(said.get("at")), name, message, traceback.rstrip())


def subject_link(subject: Subject, link: LinkSubject | None) -> str | None:
    """The address of the row's page from the application. None if there is none, or it is not safe as a link."""
    if link is None:
        return None
    try:
        return safe_address(link(subject))
    except Exception as error:  # of the application's function
        logger.warning("link_subject failed for %s: %s", subject.type, type(error).__name__)
        return None


def safe_address(given: object) -> str | None:
    """The address, if it leads to a page: by http, https, or within this site. The key of a row in it may contain `javascript:`."""
    if not isinstance(given, str) or not given or any(letter <= " " or letter in "\\\x7f" for letter in given):
        return None
    try:
        parts = urlsplit(given)
    except ValueError:
        return None
    if parts.scheme:
        return given if parts.scheme in ("http", "https") and parts.netloc else None
    return None if given.startswith("//") else given
