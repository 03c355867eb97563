"""Database URLs: what is taken, what is refused, and that no password is shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import URL
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import SQLAlchemyError

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.util.urls import connect_arguments, database_url, mask_passwords, not_connected


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg_async"])
def test_a_url_for_postgresql_means_psycopg_3(scheme: str) -> None:
    """On every version of SQLAlchemy; the rest of the URL stays."""
    url = database_url(f"{scheme}://me:p%40ss@db.example:6432/shop?sslmode=require")
    assert url == URL.create("postgresql+psycopg", "me", "p@ss", "db.example", 6432, "shop", {"sslmode": "require"})


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg2", "pg8000"])
def test_the_url_of_another_driver_names_the_same_database(driver: str) -> None:
    """An application needs no second URL for commands and workers."""
    url = f"postgresql+{driver}://me:pw@/shop?host=/run/pg"
    assert database_url(url) == URL.create("postgresql+psycopg", "me", "pw", None, None, "shop", {"host": "/run/pg"})
    assert connect_arguments(url) == {"user": "me", "password": "pw", "dbname": "shop", "host": "/run/pg"}


def test_a_url_object_is_taken_too() -> None:
    """SQLAlchemy's `URL`, with the driver made psycopg."""
    assert database_url(URL.create("postgresql", database="shop")).drivername == "postgresql+psycopg"


def test_a_socket_folder_is_kept() -> None:
    """It is in the query."""
    assert database_url("postgresql:///shop?host=/var/run/pg").query == {"host": "/var/run/pg"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("mysql://me:secret@db.example/shop", "is not a PostgreSQL URL"),
        ("sqlite:///secret.db", "is not a PostgreSQL URL"),
        (
            "postgresql+asyncpg://me:secret@db.example/shop?ssl=require",
            r"names the driver asyncpg and has options of it \(ssl\)",
        ),
        (
            "postgresql+asynpg://me:secret@db.example/shop",
            "names the driver asynpg; commands and workers use psycopg 3",
        ),
        ("host=db.example dbname=shop password=secret", "is not a database URL"),
        ("host=db.example password = 'a secret' dbname=shop", "is not a database URL"),
        ("postgresql://me:secret@db.example:port/shop", "is not a database URL"),
        ("postgresql://me:se cr@et@db.example:port/shop", "is not a database URL"),
        ("postgresql://me:se@cr@et@db.example/shop", "is not a database URL|has a host with an at sign"),
        ("shop", "is not a database URL"),
        ("", "is not a database URL"),
    ],
)
def test_anything_else_is_refused_with_what_was_given_and_what_is_expected(given: str, reason: str) -> None:
    """The password is not in the message, nor in an exception behind it."""
    with pytest.raises(ConfigurationError, match=reason) as caught:
        database_url(given)
    message = str(caught.value)
    assert "expected postgresql://host:port/database, with user and password before the host" in mask_passwords(message)
    assert "\n" not in message
    assert "secret@" not in message
    assert "=secret" not in message
    assert "a secret" not in message
    assert "cr@et" not in message
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("given", ["postgresql://me:se@cret@db/shop", URL.create("postgresql", "me", "se", "cret@db")])
def test_an_at_sign_in_a_password_is_refused_with_what_to_write(given: str | URL) -> None:
    """Half of the password would be taken for the host, and be shown."""
    with pytest.raises(ConfigurationError, match=r"postgresql://me:\*\*\*@db.*write %40") as caught:
        database_url(given)
    assert "cret" not in str(caught.value)


def test_a_refused_url_object_hides_its_password() -> None:
    """As that of a text does."""
    with pytest.raises(ConfigurationError, match=r"mysql://me:\*\*\*@db"):
        database_url(URL.create("mysql", "me", "secret", "db"))


@pytest.mark.parametrize(
    "rest",
    [
        "", "/", "db.example", "db.example/shop", "me@db.example:6432/shop", "me:p%40ss@db/shop", ":pw@/shop", "me:@db/shop",
        "me:p:w/x@db/shop", "@:5432/shop?host=%2Ftmp%2Frun", "/shop?host=a:1&host=b:2", "/shop?host=a,b&port=1,2", "/shop?host=a:1",
        "[::1]:5432/shop", "db:5432/a%20shop", "db/shop?sslmode=require&connect_timeout=3", "db/shop?host=other", "db/shop?x=&y",
        "db:0/shop", "/shop?application_name=a+b%2Bc", "grün/täglich", "db/shop?port=7",
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg_async"])
def test_psycopg_is_told_what_sqlalchemy_would_tell_it(scheme: str, rest: str) -> None:
    """Whether the URL is read by SQLAlchemy or not."""
    url = f"{scheme}://{rest}"
    assert connect_arguments(url) == PGDialect_psycopg().create_connect_args(database_url(url))[1]


@given(
    st.lists(
        st.sampled_from(
            ["me", ":", "@", "/", "?", "=", "&", "80", "host", "port", ",", "%41", ".", " ", "[", "]", "+"]
        ),
        max_size=12,
    )
)
@example(["?", "@"])
def test_psycopg_is_told_what_sqlalchemy_would_tell_it_of_any_text(parts: list[str]) -> None:
    """What the one refuses, the other refuses in the same words."""

    def told(read: Callable[[str], object]) -> object:
        try:
            return read(f"postgresql://{''.join(parts)}")
        except (ConfigurationError, SQLAlchemyError, ValueError) as error:
            return type(error), str(error)

    assert told(connect_arguments) == told(lambda url: PGDialect_psycopg().create_connect_args(database_url(url))[1])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:pw@h/db", "postgresql://me:***@h/db"),
        ("postgresql+psycopg://me:p:w/x?@h/db", "postgresql+psycopg://me:***@h/db"),
        ("at postgresql://me:p@w@h/db, not at a@b", "at postgresql://me:***@h/db, not at a@b"),
        ("postgresql://me:two words@h/db", "postgresql://me:***@h/db"),
        ("//postgresql://me:two words@h/db", "//postgresql://me:***@h/db"),
        ("postgresql:///db?application_name=x:y&password=p@w", "postgresql:///db?application_name=x:y&password=***"),
        ("https://x/a//b:c?m=joe@x.org", "https://x/a//b:c?m=joe@x.org"),
        ("postgresql:///db?password=pw&host=/tmp", "postgresql:///db?password=***&host=/tmp"),
        ("host=h sslpassword=pw dbname=db", "host=h sslpassword=*** dbname=db"),
        (r"PASSWORD = 'it\'s me' dbname=db", "PASSWORD = *** dbname=db"),
        ("postgresql://me@h:5432/db is unreachable", "postgresql://me@h:5432/db is unreachable"),
        ("no password here", "no password here"),
        ("amqp://me:p@w@h/x, not at a@b", "amqp://me:***@h/x, not at a@b"),
        ("POST http://api:8080/7 failed for bob@x", "POST http://api:8080/7 failed for bob@x"),
        ("no answer from http://api:8080 for bob@x", "no answer from http://api:8080 for bob@x"),
    ],
)
def test_passwords_are_masked_in_any_text(text: str, masked: str) -> None:
    """And nothing else is."""
    assert mask_passwords(text) == masked


def test_what_libpq_says_on_several_lines_becomes_sentences() -> None:
    """Also the reasons of several hosts, which psycopg lists below a colon."""
    said = "connection refused\n\tIs the server running?\nfailed:\n- a: x\n- b: y\n"
    expected = "connection refused. Is the server running? failed: - a: x. - b: y"
    assert not_connected(OSError(said)) == f"the database does not answer: {expected}"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_url_that_sqlalchemy_wrote_is_masked_whatever_the_password(password: str) -> None:
    """Masked is what SQLAlchemy itself would show."""
    url = URL.create("postgresql", "me", password, "h", 5432, "db")
    assert mask_passwords(f"see {url.render_as_string(hide_password=False)} there") == f"see {url!r} there"


#: What the masking is to come to, said as one expression. It looks at each part of a text once for each URL before it.
_PLAIN = re.compile(r"(postgres\w*(?:\+\w+)?://[^\s:/@]*:)(?:\S*|[^@\n]*)@|(://[^\s:/@]*:)(?!\d+(?:[/?#\s]|$))\S*@")


@given(
    st.lists(
        st.sampled_from(["postgresql", "postgres+x", "://", "//", "u", ":", "80", "/", "@", " ", "\n", "p"]),
        max_size=30,
    )
)
def test_masking_finds_what_the_plain_expression_finds(parts: list[str]) -> None:
    """Only faster: see the text of a megabyte below."""
    lines = "".join(parts).split("\n")
    assert mask_passwords("\n".join(lines)) == "\n".join(_PLAIN.sub(r"\1\2***@", line) for line in lines)


@pytest.mark.parametrize("part", ['"x":"https://example.com",', "postgres", "postgresql://u:p ", "://", "a://b:c/"])
def test_a_text_of_a_megabyte_is_masked_too(part: str) -> None:
    """A handler may log what it likes. By the plain expression each of these would take from minutes to hours."""
    text = part * (1_000_000 // len(part))
    assert mask_passwords(f"me@h {text}\nme@h") == f"me@h {text}\nme@h"
