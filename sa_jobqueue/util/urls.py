"""Database URLs: what people write, made into what psycopg 3 takes, and shown without passwords.

>>> database_url("postgres://shop:secret@db.example/shop")
postgresql+psycopg://shop:***@db.example/shop
>>> mask_passwords("cannot reach postgresql://shop:secret@db.example/shop")
'cannot reach postgresql://shop:***@db.example/shop'
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import URL


#: Driver names that mean psycopg 3. SQLAlchemy 2.0 would take a bare `postgresql` for psycopg2, and knows no `postgres`.
_PSYCOPG = frozenset({"postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg_async"})
#: Drivers whose URL an application may share with us. Options other than these belong to that driver.
_OTHERS = frozenset({"postgresql+asyncpg", "postgresql+psycopg2", "postgresql+pg8000"})
_COMMON = frozenset({"host", "port"})

#: What stands before a password in a URL. In a database's URL the password may hold any character. A port is no password.
_BEFORE = re.compile(r"(postgres\w{0,20}(?:\+\w{1,20})?://[^\s:/@]*:)|://[^\s:/@]*:(?!\d+(?:[/?#\s]|$))")
_SPACE = re.compile(r"\s|$")
_IN_PAIR = re.compile(r"((?:password|passwd)\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)


def database_url(text: str | URL) -> URL:
    """Return the SQLAlchemy URL for psycopg 3 that `text` means.

    `postgresql://` and `postgres://` are taken for `postgresql+psycopg://`, on every version of SQLAlchemy. So is the URL of
    another driver, unless it has options in the words of that driver.

    Raises `ConfigurationError` for anything else: another database, no URL at all. The message shows what was given, without its password, and what is expected. Also where psycopg cannot be used, see `check_psycopg`.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise _refused(text, "is not a database URL") from None  # SQLAlchemy's message may hold the password
    if not _is_understood(url.drivername, url.query):
        backend, _, driver = url.drivername.partition("+")
        if driver and backend in _PSYCOPG:
            options = f" and has options of it ({', '.join(url.query)})" if url.drivername in _OTHERS else ""
            raise _refused(text, f"names the driver {driver}{options}; commands and workers use psycopg 3")
        raise _refused(text, "is not a PostgreSQL URL")
    if "@" in (url.host or ""):
        raise _refused(text, "has a host with an at sign in it; in a user's name or password write %40 for it")
    check_psycopg()
    return url.set(drivername="postgresql+psycopg")


def _is_understood(driver: str, options: Mapping[str, object]) -> bool:
    return driver in _PSYCOPG or (driver in _OTHERS and options.keys() <= _COMMON)


#: What nearly all URLs look like; an escape in the database's name, several hosts and the like are left to SQLAlchemy.
_USUAL = re.compile(
    r"(?P<driver>[a-z_+]+)://(?:(?P<user>[^:/?#@\s]*)(?::(?P<password>[^:/?#@\s]*))?@)?"
    r"(?P<host>[\w.-]*)(?::(?P<port>[1-9]\d{0,4}))?(?:/(?P<dbname>[\w.-]*))?(?:\?(?P<query>[^\s@]*))?"
)


def connect_arguments(text: str) -> dict[str, Any]:
    """Return what `psycopg.connect` takes for a URL: the same that SQLAlchemy would give it.

    The usual form of a URL is read here, because loading SQLAlchemy takes longer than all else that a probe does. Raises what
    `database_url` raises.
    """
    usual = _USUAL.fullmatch(text)
    query = parse_qsl(usual["query"] or "") if usual else []
    options = dict(query)
    if (
        usual is None
        or len(options) < len(query)
        or not _is_understood(usual["driver"], options)
        or _has_several_hosts(options)
    ):
        from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

        dialect: Any = PGDialect_psycopg
        return dict(dialect().create_connect_args(database_url(text))[1])
    check_psycopg()
    found = {name: usual[name] for name in ("host", "port", "dbname")}
    found |= {name: unquote(usual[name] or "") for name in ("user", "password")}
    return {name: int(value) if name == "port" else value for name, value in found.items() if value} | options


def _has_several_hosts(options: Mapping[str, str]) -> bool:
    """Also a host whose port is in the query."""
    return "port" in options or not {",", ":"}.isdisjoint(options.get("host", ""))


def check_psycopg() -> None:
    """Raise `ConfigurationError` where psycopg is installed without libpq, which it finds out when it is imported."""
    try:
        importlib.import_module("psycopg")
    except ImportError as error:
        raise ConfigurationError(
            "psycopg cannot be used, most likely because PostgreSQL's client library libpq is missing: install "
            f"sa_jobqueue[binary], which brings it ({' '.join(str(error).split())})"
        ) from error


def mask_passwords(text: str) -> str:
    """Return `text` with `***` for each password in a URL (`//user:…@`, `?password=…`) or a `password=…` pair."""
    if "@" in text:
        text = "\n".join([_mask_line(line) if "@" in line else line for line in text.split("\n")])
    return _IN_PAIR.sub(r"\1***", text)


#: The single key of the stored form of a `Secret()` argument, and of a `Sensitive()` argument; and the text that displays show for both.
SECRET, SENSITIVE, HIDDEN = "$secret", "$sensitive", "(hidden)"
_DEEPEST = 200


def without_secrets(value: Any, depth: int = 0) -> Any:
    """Plain JSON of a row without the arguments that are secret or sensitive, at any depth. What is nested deeper than arguments can be is hidden."""
    match value:
        case dict() | list() if depth > _DEEPEST:
            return HIDDEN
        case dict():
            if len(value) == 1 and (SECRET in value or SENSITIVE in value):
                return HIDDEN
            return {name: without_secrets(entry, depth + 1) for name, entry in value.items()}
        case list():
            return [without_secrets(entry, depth + 1) for entry in value]
        case _:
            return value


def masked(value: Any) -> Any:
    """`value` as plain JSON, as far as it is any, without secret arguments, and without the passwords in its texts."""
    match value:
        case dict() if len(value) == 1 and (SECRET in value or SENSITIVE in value):
            return HIDDEN
        case str():
            return mask_passwords(value)
        case float() if not isfinite(value):
            return str(value)
        case dict():
            return {mask_passwords(str(name)): masked(entry) for name, entry in value.items()}
        case list() | tuple():
            return [masked(entry) for entry in value]
        case _:
            return value


def _mask_line(line: str) -> str:
    """With `***` up to the last @ of the word, or, in a database's URL, to the next @ behind a space.

    No part is read more than a few times, because a log record may be a megabyte of URLs.
    """
    shown, done, start, word_end, last = [], 0, 0, -1, -1
    while before := _BEFORE.search(line, start):
        start = before.end()
        if start > word_end:
            word_end = _SPACE.search(line, start).start()  # type: ignore[union-attr]
            last = line.rfind("@", start, word_end)
        end = last if last >= start else line.find("@", start) if before[1] else -1
        if end >= 0:
            shown += [line[done:start], "***"]
            done = start = end
        elif before[1]:
            break
        else:
            start = before.start() + 1
    return "".join([*shown, line[done:]])


#: libpq puts two spaces before a server's message, and only there, in any language of server and libpq.
_SERVER_SAID = re.compile(r"failed: \S+:  ")


def not_connected(reason: BaseException) -> str:
    """What to say where no connection was made: that the server refused it, or that nothing answers.

    libpq's lines become sentences of one line.

    >>> not_connected(OSError('port 5432 failed: FATAL:  database "shop" does not exist'))
    'the database refused the connection: port 5432 failed: FATAL:  database "shop" does not exist'
    """
    said = _as_sentences(str(reason))
    return f"the database {'refused the connection' if _SERVER_SAID.search(said) else 'does not answer'}: {said}"


def _as_sentences(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ended = [line if line.endswith((".", ":", "?", "!", ",")) else f"{line}." for line in lines[:-1]]
    return " ".join([*ended, *lines[-1:]])


def same_database(one: URL, other: URL) -> bool:
    """Whether both name the same database, as the same user and with the same options, as far as URLs can say."""
    return one.database is not None and _place(one) == _place(other)


def _place(url: URL) -> tuple[object, ...]:
    return url.host, url.port or 5432, url.database, url.username, url.query


def _refused(text: str | URL, reason: str) -> ConfigurationError:
    # A URL that cannot be read: all that stands before its last @ may be the password.
    shown = re.sub(r"((?:://|^)[^:/@]*:)(?!//).*@", r"\1***@", str(text), flags=re.DOTALL)
    return ConfigurationError(
        # No @ in it: it would look like a password, and be masked where the message is shown.
        f"{mask_passwords(shown)!r} {reason}: expected postgresql://host:port/database, "
        "with user and password before the host"
    )
