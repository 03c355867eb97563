"""Templates, and what they may call. Whatever comes from a row is escaped by Jinja; nothing is marked as safe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..statements.depths import capped
from ..version import __version__
from ..words import age, duration, estimated, size
from .query import Query
from .strings import text

__all__ = ["Renderer", "local_path"]

#: Characters of a text of a row that a line shows.
_LINE = 200


class Renderer:
    """Renders the pages of one mounted dashboard."""

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
    called: dict[str, Any] = {"t": text, "Query": Query}
    made.globals.update(called)
    filters: dict[str, Any] = {
        "age": age, "ago": _ago, "capped": capped, "duration": duration, "estimated": estimated, "size": size, "number": _number, "iso": _iso,
        "clock": _clock, "pretty": _pretty, "compact": _compact, "line": _line, "data": _data,
    }  # fmt: skip
    made.filters.update(filters)
    return made


def local_path(given: str) -> str | None:
    """A path below the dashboard that a form may lead back to; None for anything else, such as an address of another site."""
    if not given.startswith("/") or given.startswith(("//", "/\\")) or any(ord(one) < 32 for one in given):
        return None
    return given


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def _iso(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _clock(moment: datetime | None) -> str:
    """A time as it is read: to the second, of UTC; the page's script shows that of the viewer's zone beside it."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


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


def _data(value: Any) -> str:
    """JSON for a `data-` attribute, which the page's script reads."""
    return json.dumps(value, separators=(",", ":"), default=str)
