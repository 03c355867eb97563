"""The versions of the schema, and bringing a database to a version.

From a revision of a project's own Alembic history (`sa-jobqueue migrate --revision` writes it):

    from alembic import op
    import sa_jobqueue.migrations

    def upgrade() -> None:
        sa_jobqueue.migrations.upgrade(op, to=1)

    def downgrade() -> None:
        sa_jobqueue.migrations.downgrade(op, to=0)

Without an Alembic history of your own, `sa-jobqueue migrate` or:

    from sa_jobqueue.migrations import upgrade_database

    upgrade_database("postgresql://localhost/shop")

Every step reads `schema_version` first, under a lock: repeated or simultaneous calls do the work once. A schema of
another name is given once, by the connection's `schema_translate_map={"sa_jobqueue": "other"}`, or by `schema=`.
"""

from __future__ import annotations

from ..util.schema import CURRENT
from ..util.schema import SCHEMA as DEFAULT_SCHEMA
from .autogenerate import include_name, include_object, revision_source
from .own_table import OwnTable
from .runner import (
    MigrationOperations,
    check_schema,
    create_schema,
    current_version,
    downgrade,
    downgrade_database,
    sql,
    upgrade,
    upgrade_database,
)
from .steps import VERSIONS

__all__ = [
    "CURRENT",
    "DEFAULT_SCHEMA",
    "VERSIONS",
    "MigrationOperations",
    "OwnTable",
    "check_schema",
    "create_schema",
    "current_version",
    "downgrade",
    "downgrade_database",
    "include_name",
    "include_object",
    "revision_source",
    "sql",
    "upgrade",
    "upgrade_database",
]
