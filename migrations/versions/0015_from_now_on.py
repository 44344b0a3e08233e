"""Of an adopted table: whether somebody chose that rows from before its adoption stay without records."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMN = """
ALTER TABLE adopted ADD COLUMN from_now_on boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN adopted.from_now_on IS
    'Somebody chose that rows which were there before get no backfill, so that nobody is reminded of it.';
"""


def upgrade() -> None:
    """Add the column. Of what is adopted already nobody knows what was chosen."""
    op.get_bind().exec_driver_sql(COLUMN)


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
