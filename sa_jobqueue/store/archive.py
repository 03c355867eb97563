"""The archive: its months, and which tasks' jobs are moved to it. Moving is pruning's."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from ..statements.archive import declare_archived, drop_archive_month, make_months_ahead
from ..statements.archived import archive_parts
from .tables import OfTables

__all__ = ["Archive"]


class Archive(OfTables):
    """Making and dropping months, and writing down what code says. The first two fail with `Fault.LATE` where another transaction is in
    the way.
    """

    def declare_archived(self, connection: sa.Connection, add: Collection[str], remove: Collection[str]) -> None:
        """Finished jobs of the tasks in `add` are archived from now on, and those of the tasks in `remove` no longer."""
        names = sorted(add), sorted(remove)  # in order, so that workers that start together do not deadlock
        connection.execute(declare_archived(*names, archived_task=self.tables.archived_task))

    def archive_parts(self, connection: sa.Connection) -> Sequence[str]:
        """The months of the archive that there are, the newest first; none where the role may not read it."""
        return connection.scalars(
            archive_parts(schema=self.schema_on(connection), table=self.tables.job.__tablename__)
        ).all()

    def make_months_ahead(self, connection: sa.Connection) -> int:
        """Make this month's table of the archive, and the next one's, if they are missing; how many were."""
        return int(connection.scalar(make_months_ahead(schema=self._schema)) or 0)

    def drop_archive_month(self, connection: sa.Connection, kept: int) -> str | None:
        """Drop the oldest month that ended more than `kept` months ago. Returns it, as "2026-11"; None: there is none."""
        name: str | None = connection.scalar(drop_archive_month(kept, schema=self._schema))
        return None if name is None else name.removeprefix("archived_job_").replace("_", "-")

    @property
    def _schema(self) -> str:
        return self.tables.job.__table__.schema or ""
