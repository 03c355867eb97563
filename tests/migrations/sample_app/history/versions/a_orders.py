"""Orders and stock."""

import sqlalchemy as sa
from alembic import op

revision = "orders"
down_revision = None


def upgrade() -> None:
    op.execute("CREATE SCHEMA depot")
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("code", sa.String, nullable=False, unique=True),
    )
    op.create_table("stock", sa.Column("id", sa.Integer, primary_key=True), schema="depot")


def downgrade() -> None:
    op.drop_table("stock", schema="depot")
    op.drop_table("orders")
    op.execute("DROP SCHEMA depot")
