"""The values in the address of a page or in a form, by name: parsed, checked, and written again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from ..rules.retry import read_duration
from .refusals import BadInput

#: The most bytes of a form, and the most values in a form or an address.
_LARGEST, _MOST = 1_000_000, 5_000
#: The most values of one name: each value of a filter is a condition, and each link of a page has them all. A form may have more ids.
_EACH = 100
_IDS = range(1, 2**63)
#: What is expected of a time.
A_TIME = "a time such as 2030-01-31 or 2030-01-31T09:00+01:00"
#: Marks links and forms in which a name begins or ends with a space.
_EXACT = ("exact", "yes")


class Query(Mapping[str, list[str]]):
    """Values by name, each as often as it was given; empty values are left out.

    >>> query = Query.parse("status=failed&queue=mail&queue=sync&tag=")
    >>> query.all("queue"), query.one("status"), str(query.but(queue=()))
    (['mail', 'sync'], 'failed', 'status=failed')
    """

    def __init__(self, values: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in values:
            if value:
                self._values.setdefault(name, []).append(value)

    @classmethod
    def parse(cls, text: str, *, ids: int = _EACH) -> Query:
        """Parse a query. Spaces around values are removed, unless a link or a form of the dashboard marks them as part of a name.

        Raises BadInput for too many values, more than `ids` ids, or a value that no row can have.
        """
        try:
            pairs = parse_qsl(text, max_num_fields=_MOST)
        except ValueError as error:
            raise BadInput("the request", text, f"at most {_MOST:,} values") from error
        spoiled = [name for name, value in pairs if "\0" in name or "\0" in value]
        if spoiled:
            raise BadInput(spoiled[0], "NUL", "text, in which there is no NUL character")
        for name, number in Counter(name for name, _ in pairs).items():
            if number > (most := ids if name == "id" else _EACH):
                raise BadInput(name, f"{number:,} values", f"at most {most:,}")
        if _EXACT in pairs:
            return cls(pair for pair in pairs if pair != _EXACT)
        return cls((name, value.strip()) for name, value in pairs)

    def all(self, name: str) -> list[str]:
        """All values of this name."""
        return list(self._values.get(name, ()))

    def one(self, name: str, default: str = "") -> str:
        """The last value of this name."""
        return self._values.get(name, [default])[-1]

    def id(self, name: str) -> int | None:
        """An id: 64 bits. Raises BadInput."""
        return as_id(name, given) if (given := self.one(name)) else None

    def ids(self, name: str) -> list[int]:
        """All ids of this name. Raises BadInput."""
        return [as_id(name, value) for value in self.all(name)]

    def json_object(self, name: str, *, reason: bool = False) -> dict[str, Any] | None:
        """A JSON object. Raises BadInput, with the parser's `reason`."""
        expected = 'a JSON object, as in {"order_id": 7}'
        if not (given := self.one(name)):
            return None
        try:
            found = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise BadInput(name, given, f"{expected} ({error})" if reason else expected) from error
        if not isinstance(found, dict):
            raise BadInput(name, given, expected)
        return cast(dict[str, Any], found)

    def number(self, name: str, default: int, allowed: range) -> int:
        """A whole number. Raises BadInput."""
        if not (given := self.one(name)):
            return default
        if not (given.isascii() and given.isdecimal() and len(given) < 20 and int(given) in allowed):
            raise BadInput(name, given, f"a number from {allowed[0]:,} to {allowed[-1]:,}")
        return int(given)

    def duration(self, name: str) -> timedelta | None:
        """An age. Raises BadInput."""
        if not (given := self.one(name)):
            return None
        try:
            return read_duration(given)
        except ValueError as error:
            raise BadInput(name, given, "a time such as 45s, 10m, 2h, 3d, 1w") from error

    def text(self, name: str, most: int) -> str:
        """The last value of this name. Raises BadInput if any of them has more than `most` characters."""
        if len(given := max(self.all(name), key=len, default="")) > most:
            raise BadInput(name, given, f"at most {most:,} characters, not {len(given):,}")
        return self.one(name)

    def moment(self, name: str, zone: tzinfo = UTC) -> datetime | None:
        """A time, in `zone`, which is also that of a time without a zone. Raises BadInput."""
        if not (given := self.one(name)):
            return None
        try:
            found = datetime.fromisoformat(given)
            return (found if found.tzinfo is not None else found.replace(tzinfo=zone)).astimezone(zone)
        except (ValueError, OverflowError) as error:
            raise BadInput(name, given, A_TIME) from error

    def but(self, **changed: Any) -> Query:
        """A copy with other values; `()`, None or an empty string removes a value."""
        pairs = [(name, value) for name, value in self.pairs() if name not in changed]
        for name, given in changed.items():
            values = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
            pairs += [(name, str(value)) for value in values if value is not None]
        return Query(pairs)

    def only(self, *names: str) -> Query:
        """A copy with these names only."""
        return Query((name, value) for name in names for value in self.all(name))

    def as_dict(self) -> dict[str, list[str]]:
        """All values by name, for JSON."""
        return {name: list(values) for name, values in self._values.items()}

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values, for the hidden fields of a form."""
        found = [(name, value) for name, values in self._values.items() for value in values]
        return found if all(value == value.strip() for _, value in found) else [*found, _EXACT]

    def __getitem__(self, name: str) -> list[str]:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        return urlencode(self.pairs())


def as_id(name: str, text: str) -> int:
    """The id of a job or another row. Raises BadInput."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) in _IDS):
        raise BadInput(name, text, "an id: a whole number from 1 on")
    return int(text)


async def read_form(request: Request) -> Query:
    """Read the fields of a form. Raises BadInput for a body that is too large, or is no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise BadInput("the request", kind, "a form, application/x-www-form-urlencoded")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            raise BadInput("the request", f"{len(body):,} bytes", f"at most {_LARGEST:,}")
    try:
        # Browsers send each line break as two characters.
        return Query.parse(body.decode().replace("%0D%0A", "%0A"), ids=_MOST)
    except UnicodeDecodeError as error:
        raise BadInput("the request", "bytes", "UTF-8") from error
