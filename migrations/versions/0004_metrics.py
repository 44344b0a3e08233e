"""Counters that metrics need: bursts, failed runs, and how long first events took."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

UP = """
ALTER TABLE sync_cursors
    ADD COLUMN bursts bigint NOT NULL DEFAULT 0,
    ADD COLUMN failed_runs bigint NOT NULL DEFAULT 0,
    ADD COLUMN first_event_ms_sum bigint NOT NULL DEFAULT 0,
    ADD COLUMN first_event_counts integer[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN sync_cursors.first_event_counts IS
    'How many bursts had their first event handed over in each bucket; see taskbridge/common/histogram.py.';
"""

DOWN = """
ALTER TABLE sync_cursors
    DROP COLUMN bursts, DROP COLUMN failed_runs, DROP COLUMN first_event_ms_sum, DROP COLUMN first_event_counts;
"""


def upgrade() -> None:
    """Add the columns, all of them zero."""
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    """Drop them, with what they hold."""
    op.get_bind().exec_driver_sql(DOWN)
