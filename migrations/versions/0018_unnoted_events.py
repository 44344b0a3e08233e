"""Events by the burst that they belong to, and those that the run history has not yet."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE sync_cursors
    ADD COLUMN burst text COLLATE "C",
    ADD COLUMN found_bursts bigint NOT NULL DEFAULT 0,
    ADD COLUMN unnoted_events bigint NOT NULL DEFAULT 0,
    ADD COLUMN unnoted_burst boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN sync_cursors.burst IS 'The last burst: the token of its first run.';
COMMENT ON COLUMN sync_cursors.found_bursts IS
    'Bursts beside `bursts` that the tail began: no event had come when their first run claimed the cursor.';
COMMENT ON COLUMN sync_cursors.unnoted_events IS 'Events that no row of the run history has; the next row has them.';
COMMENT ON COLUMN sync_cursors.unnoted_burst IS 'Whether the last burst has no row in the run history yet.';
COMMENT ON COLUMN runs.events IS
    'Events since the row before it. A run without records has a row only where events came, or where it failed.';
COMMENT ON COLUMN runs.burst_run IS
    'Which run of its burst it was; 1 for the first one that has a row, 0 for a death after a row of the same run.';
"""


def upgrade() -> None:
    """Add the columns. Bursts that are on get a name by their next run."""
    op.get_bind().exec_driver_sql(COLUMNS)


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
