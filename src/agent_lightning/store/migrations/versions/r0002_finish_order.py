"""The order in which rollouts ended, whose turn it is among runs, and which rollouts were cleared of text and tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ENDED = sa.text("finish_order IS NOT NULL")
_AT_WORK = sa.text("status = 'running'")

# The order of commits was not kept until now: the time of the end comes closest to it.
_NUMBER = """
UPDATE rollouts SET finish_order = numbered.place
FROM (
    SELECT id, row_number() OVER (PARTITION BY run_id ORDER BY coalesce(finished_at, created_at), seq) AS place
    FROM rollouts WHERE status IN ('finished', 'cancelled')
) AS numbered
WHERE rollouts.id = numbered.id
"""


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("finish_order", sa.BigInteger(), nullable=True))
    op.add_column("rollouts", sa.Column("cleared_at", sa.Float(), nullable=True))
    op.execute(_NUMBER)
    op.create_index(
        "ix_rollouts_finish_order",
        "rollouts",
        ["run_id", "finish_order"],
        unique=True,
        sqlite_where=_ENDED,
        postgresql_where=_ENDED,
    )
    op.create_index(
        "ix_rollouts_at_work",
        "rollouts",
        ["run_id", "mode", "status"],
        sqlite_where=_AT_WORK,
        postgresql_where=_AT_WORK,
    )
    op.create_table(
        "turns",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("served", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_turns")),
    )


def downgrade() -> None:
    op.drop_table("turns")
    op.drop_index("ix_rollouts_at_work", "rollouts")
    op.drop_index("ix_rollouts_finish_order", "rollouts")
    op.drop_column("rollouts", "cleared_at")
    op.drop_column("rollouts", "finish_order")
