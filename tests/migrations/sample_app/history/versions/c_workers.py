"""A table that points to jobs."""

import sqlalchemy as sa
from alembic import op

revision = "workers"
down_revision = "sa_jobqueue_1"


def upgrade() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.BigInteger, sa.ForeignKey("sa_jobqueue.job.id"), nullable=False, index=True),
    )


def downgrade() -> None:
    op.drop_table("worker")
