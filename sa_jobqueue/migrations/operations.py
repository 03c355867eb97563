"""The operations that autogenerate writes for a job table of the application's own."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import renderers
from alembic.operations import Operations
from alembic.operations.ops import MigrateOperation

from .runner import downgrade, upgrade


@Operations.register_operation("upgrade_job_queue")
class UpgradeQueueOp(MigrateOperation):
    """Bring the job queue's schema up to a version."""

    def __init__(self, schema: str, to: int) -> None:
        self.schema, self.to = schema, to

    @classmethod
    def upgrade_job_queue(cls, operations: Operations, schema: str, to: int) -> Any:
        """Do it now."""
        return operations.invoke(cls(schema, to))

    def reverse(self) -> MigrateOperation:
        """The operation that undoes it."""
        return DowngradeQueueOp(self.schema, self.to - 1)


@Operations.register_operation("downgrade_job_queue")
class DowngradeQueueOp(MigrateOperation):
    """Bring it down to a version; at 0 it is gone, with all jobs."""

    def __init__(self, schema: str, to: int) -> None:
        self.schema, self.to = schema, to

    @classmethod
    def downgrade_job_queue(cls, operations: Operations, schema: str, to: int) -> Any:
        """Do it now."""
        return operations.invoke(cls(schema, to))

    def reverse(self) -> MigrateOperation:
        """The operation that undoes it."""
        return UpgradeQueueOp(self.schema, self.to + 1)


@Operations.implementation_for(UpgradeQueueOp)
def _upgrade(operations: Operations, operation: UpgradeQueueOp) -> None:
    upgrade(operations, operation.to, schema=operation.schema)


@Operations.implementation_for(DowngradeQueueOp)
def _downgrade(operations: Operations, operation: DowngradeQueueOp) -> None:
    downgrade(operations, operation.to, schema=operation.schema)


@renderers.dispatch_for(UpgradeQueueOp)
def _render_upgrade(context: Any, operation: UpgradeQueueOp) -> str:
    return _rendered(context, "upgrade", operation)


@renderers.dispatch_for(DowngradeQueueOp)
def _render_downgrade(context: Any, operation: DowngradeQueueOp) -> str:
    return _rendered(context, "downgrade", operation)


def _rendered(context: Any, name: str, operation: Any) -> str:
    context.imports.add("import sa_jobqueue.migrations")
    return f"sa_jobqueue.migrations.{name}(op, to={operation.to}, schema={operation.schema!r})"
