"""The SQL of each step between two versions: pure text, the same online and for `--sql`.

A step is one `DO` statement that locks, reads `schema_version` and does its work or nothing. So it is atomic on an
AUTOCOMMIT connection too, and a script made offline may be run twice.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import ConfigurationError
from ..util.schema import BODY_TAG, CURRENT, quote
from . import v01


class Version(Protocol):
    """A frozen version: the statements up to it from the version before, and back. `{schema}` is the quoted schema.

    `BUILT_ALONE`: indexes of a table that is in use, each by its name `CREATE INDEX CONCURRENTLY IF NOT EXISTS name ...`.
    They come after the version's other statements, and outside of a transaction. An upgrade that was interrupted builds
    them when it is run again.

    `COMPATIBLE_WITH`: releases made for that version of the schema, or a later version, can work with this version. A step
    that only adds keeps the number of the version before it; a step that takes away raises it, to at most its own
    minus 1, because the workers of the previous release are still there while a deployment rolls.
    """

    UP: Iterable[str]
    BUILT_ALONE: Mapping[str, str]
    DOWN: Iterable[str]
    COMPATIBLE_WITH: int


#: Every version there was.
VERSIONS: Mapping[int, Version] = {1: v01}

#: How long to wait for another migration, which is harmless, and for a table, behind which all its users queue up.
#: Both give way to a `lock_timeout` that the session has set.
_MIGRATION_PATIENCE = "60s"
_TABLE_PATIENCE = "10s"


def _if(condition: str, statements: Iterable[str]) -> str:
    return f"IF {condition} THEN\n{_body(statements)}END IF"


def _body(statements: Iterable[str]) -> str:
    return "".join(textwrap.indent(textwrap.dedent(part).strip(), "    ") + ";\n" for part in statements)


# An existing schema is not made again: even IF NOT EXISTS needs the right to create schemas.
_SCHEMA = _if("to_regnamespace({name}) IS NULL", ["CREATE SCHEMA {schema}"])

_VERSION_TABLE = _if(
    "to_regclass({name} || '.schema_version') IS NULL",
    [
        """
        CREATE TABLE {schema}.schema_version (
            version integer NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now(),
            compatible_with integer NOT NULL DEFAULT 1,
            CONSTRAINT schema_version_pkey PRIMARY KEY (version)
        )
        """
    ],
)


_NO_VERSION_TABLE = "DROP TABLE {schema}.schema_version"

_TOO_NEW = "RAISE object_not_in_prerequisite_state USING MESSAGE = 'it is newer than this release knows'"


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a migration."""

    statement: str
    needed: str | None = None
    """For a statement that must run outside a transaction: the query that tells whether it is needed."""

    @property
    def alone(self) -> bool:
        """Whether it must run outside of a transaction."""
        return self.needed is not None


def upgrades(to: int, schema: str) -> list[Step]:
    """Return the statements that bring any older database up to version `to`."""
    if not 1 <= to <= CURRENT:
        raise ConfigurationError(f"there is no version {to!r} to upgrade to: this release knows 1 to {CURRENT}")
    return [step for version in range(1, to + 1) for step in (_upgrade(version, schema), *_builds(version, schema))]


def downgrades(to: int, schema: str) -> list[Step]:
    """Return the statements that bring a database down to version `to`; 0 removes everything."""
    if not 0 <= to <= CURRENT:
        raise ConfigurationError(f"there is no version {to!r} to downgrade to: this release knows 0 to {CURRENT}")
    steps = [_downgrade(version, schema) for version in range(CURRENT, to, -1)]
    return [*steps, _removal(schema)] if to == 0 else steps


def preparation(schema: str) -> Step:
    """Return the statement that makes the schema alone, and keeps others out until the transaction ends."""
    return _block(schema, [_SCHEMA])


def _upgrade(version: int, schema: str) -> Step:
    step = VERSIONS[version]
    note = (
        f"INSERT INTO {{schema}}.schema_version (version, compatible_with) VALUES ({version}, {step.COMPATIBLE_WITH})"
    )
    work = (*step.UP, note)
    missing = "NOT EXISTS (SELECT FROM {schema}.schema_version WHERE version >= {version})"
    return _block(schema, [_SCHEMA, _VERSION_TABLE, _if(missing, work)], version)


def _builds(version: int, schema: str) -> Iterator[Step]:
    """Build the indexes that are built alone. What an interrupted build has left is INVALID, and dropped first."""
    for name, statement in VERSIONS[version].BUILT_ALONE.items():
        index = f"to_regclass({{name}} || '.{name}')"
        invalid = f"EXISTS (SELECT FROM pg_index WHERE indexrelid = {index} AND NOT indisvalid)"
        yield _block(schema, [_if(invalid, [f"DROP INDEX {{schema}}.{name}"])], version)
        # A later version may have dropped it again.
        needed = f"SELECT max(version) = {{version}} AND {index} IS NULL FROM {{schema}}.schema_version"
        yield Step(_filled(statement, schema, version), _filled(needed, schema, version))


def _downgrade(version: int, schema: str) -> Step:
    newer = _if("EXISTS (SELECT FROM {schema}.schema_version WHERE version > {version})", [_TOO_NEW])
    forget = "DELETE FROM {schema}.schema_version WHERE version = {version}" if version > 1 else _NO_VERSION_TABLE
    work = (*VERSIONS[version].DOWN, forget)
    there = _if("EXISTS (SELECT FROM {schema}.schema_version WHERE version = {version})", work)
    return _block(schema, [_if("to_regclass({name} || '.schema_version') IS NOT NULL", [newer, there])], version)


def _removal(schema: str) -> Step:
    """Drop the schema too if nothing else is in it, if it is ours to drop, and if we could make it again."""
    drop = textwrap.dedent(
        """
        BEGIN
            DROP SCHEMA {schema};
        EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
            NULL;
        END
        """
    )
    condition = (
        "to_regnamespace({name}) IS NOT NULL AND {name} <> '\"public\"' "
        "AND has_database_privilege(current_database(), 'CREATE')"
    )
    return _block(schema, [_if(condition, [drop])])


def _block(schema: str, statements: Iterable[str], version: int = 0) -> Step:
    """Wrap `statements` in a `DO` with the lock; the caller's settings are as before when it is done."""
    frame = (
        # Nothing in the caller's search_path stands in for a built-in function or operator.
        "SET LOCAL search_path = pg_catalog, pg_temp",
        _if("caller_lock_timeout = '0'", [f"SET LOCAL lock_timeout = '{_MIGRATION_PATIENCE}'"]),
        f"PERFORM pg_advisory_xact_lock({_lock_key(schema)})",
        _if("caller_lock_timeout = '0'", [f"SET LOCAL lock_timeout = '{_TABLE_PATIENCE}'"]),
        *statements,
        "PERFORM set_config('lock_timeout', caller_lock_timeout, true)",
        "PERFORM set_config('search_path', caller_search_path, true)",
    )
    body = _filled(_body(frame), schema, version)
    return Step(
        f"DO {BODY_TAG}\n"
        "DECLARE\n"
        "    caller_lock_timeout text := pg_catalog.current_setting('lock_timeout');\n"
        "    caller_search_path text := pg_catalog.current_setting('search_path');\n"
        f"BEGIN\n{body}END\n{BODY_TAG}"
    )


def _filled(statement: str, schema: str, version: int) -> str:
    quoted = quote(schema)
    values = {"schema": quoted, "name": "'" + quoted.replace("'", "''") + "'", "version": str(version)}
    return re.sub(r"\{(schema|name|version)\}", lambda mark: values[mark[1]], statement)


def _lock_key(schema: str) -> int:
    """Return the advisory lock that stands for migrating `schema` in this database."""
    digest = hashlib.sha256(f"sa_jobqueue.migrations:{schema}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
