"""The job queue's tables, version 1 (sa_jobqueue).

Revision ID: sa_jobqueue_1
Revises: orders
"""

from alembic import op

import sa_jobqueue.migrations

revision = "sa_jobqueue_1"
down_revision = "orders"
branch_labels = None
depends_on = None


def upgrade() -> None:
    sa_jobqueue.migrations.upgrade(op, to=1)


def downgrade() -> None:
    sa_jobqueue.migrations.downgrade(op, to=0)
