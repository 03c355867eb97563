"""The operations that autogenerate writes for a job table of the application's own."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import renderers
from alembic.operations import Operations
from alembic.operations.ops import MigrateOperation

from .runner import downgrade, upgrade


class _QueueOp(MigrateOperation):
    def __init__(self, schema: str, to: int) -> None:
        self.schema, self.to = schema, to


@Operations.register_operation("upgrade_job_queue")
class UpgradeQueueOp(_QueueOp):
    """Bring the job queue's schema up to a version."""

    @classmethod
    def upgrade_job_queue(cls, operations: Operations, schema: str, to: int) -> Any:
        """Do it now."""
        return operations.invoke(cls(schema, to))

    def reverse(self) -> MigrateOperation:
        """The operation that undoes it."""
        return DowngradeQueueOp(self.schema, self.to - 1)


@Operations.register_operation("downgrade_job_queue")
class DowngradeQueueOp(_QueueOp):
    """Bring the job queue's schema down to a version; at 0 the schema is gone, with all jobs."""

    @classmethod
    def downgrade_job_queue(cls, operations: Operations, schema: str, to: int) -> Any:
        """Do it now."""
        return operations.invoke(cls(schema, to))

    def reverse(self) -> MigrateOperation:
        """The operation that undoes it."""
        return UpgradeQueueOp(self.schema, self.to + 1)


@Operations.implementation_for(UpgradeQueueOp)
@Operations.implementation_for(DowngradeQueueOp)
def _migrate(operations: Operations, operation: _QueueOp) -> None:
    migrate = upgrade if isinstance(operation, UpgradeQueueOp) else downgrade
    migrate(operations, operation.to, schema=operation.schema)


@renderers.dispatch_for(UpgradeQueueOp)
@renderers.dispatch_for(DowngradeQueueOp)
def _rendered(context: Any, operation: _QueueOp) -> str:
    context.imports.add("import sa_jobqueue.migrations")
    name = "upgrade" if isinstance(operation, UpgradeQueueOp) else "downgrade"
    return f"sa_jobqueue.migrations.{name}(op, to={operation.to}, schema={operation.schema!r})"
