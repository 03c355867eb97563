"""For projects with an Alembic history of their own: a filter for autogenerate, and the revision that calls us."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..util.schema import CURRENT, SCHEMA
from .steps import downgrades, upgrades


def include_name(name: str | None, type_: str, parent_names: Mapping[str, Any], *, schema: str = SCHEMA) -> bool:
    """Keep autogenerate out of the job queue's schema, in an `env.py` with `include_schemas=True`.

        context.configure(..., include_schemas=True, include_name=sa_jobqueue.migrations.include_name)

    Without `include_schemas` Alembic reads the default schema alone, and no filter is needed. For a schema of another
    name: `functools.partial(include_name, schema="other")`. Together with your own filter: `return include_name(name,
    type_, parent_names) and ...`. The schema is taken for the job queue's alone: other tables in it are not seen either.
    """
    return type_ != "schema" or name != schema


def include_object(
    object: Any, name: str | None, type_: str, reflected: bool, compare_to: Any, *, schema: str = SCHEMA
) -> bool:
    """Keep the job queue's tables out of what autogenerate compares, also those that the project's metadata names.

        context.configure(..., include_object=sa_jobqueue.migrations.include_object)

    For projects that put our models into their `target_metadata`, or that reflect them; else `include_name` is enough, and
    quicker, because it does not read the tables. For a schema of another name: see `include_name`. Foreign keys into that
    are left alone: the models name the default schema, which Alembic does not translate, and would propose to drop and make
    such a key again and again.
    """
    if type_ == "foreign_key_constraint" and schema != SCHEMA:
        referred = [element.target_fullname.rsplit(".", 2) for element in object.elements]
        return not any(len(parts) == 3 and parts[0] in {SCHEMA, schema} for parts in referred)
    table = object if type_ == "table" else getattr(object, "table", None)
    return getattr(table, "schema", None) != schema


def revision_source(
    down_revision: str | None, to: int | None = None, *, since: int | None = None, schema: str = SCHEMA
) -> str:
    """Return the source of an Alembic revision that brings the schema up to version `to`, in a project's own history.

    Args:
        down_revision: The revision it follows: the head of that history, or None in an empty history.
        to: The version (default: this release's).
        since: The version that this history reached before, to which the revision downgrades (default: `to` - 1).
        schema: The schema's name.
    """
    to = CURRENT if to is None else to
    since = to - 1 if since is None else since
    upgrades(to, schema)  # refuses what the revision could not run
    downgrades(since, schema)
    return _REVISION.format(
        revision=f"sa_jobqueue_{to}",
        revises=down_revision or "",
        down_revision=json.dumps(down_revision) if down_revision else None,
        to=to,
        since=since,
        option="" if schema == SCHEMA else f", schema={json.dumps(schema, ensure_ascii=False)}",
    )


_REVISION = '''\
"""The job queue's tables, version {to} (sa_jobqueue).

Revision ID: {revision}
Revises: {revises}
"""

from alembic import op

import sa_jobqueue.migrations

revision = "{revision}"
down_revision = {down_revision}
branch_labels = None
depends_on = None


def upgrade() -> None:
    sa_jobqueue.migrations.upgrade(op, to={to}{option})


def downgrade() -> None:
    sa_jobqueue.migrations.downgrade(op, to={since}{option})
'''
