<%!
from sa_jobqueue.migrations import CURRENT  # the newest version: its vNN.py comes first, then `alembic revision`
%>"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from alembic import op

from sa_jobqueue import migrations

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    migrations.upgrade(op, to=${CURRENT})


def downgrade() -> None:
    migrations.downgrade(op, to=${CURRENT - 1})
