"""Who did what: the audit, and who paused."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# These read no table, however large it is.
TABLES = """
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz DEFAULT now() NOT NULL,
    who text NOT NULL,
    action text NOT NULL,
    pipeline text COLLATE "C",
    tenant text COLLATE "C",
    key text COLLATE "C",
    detail text,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);
COMMENT ON TABLE audit IS 'What people did, one row for each action.';
COMMENT ON COLUMN audit.who IS 'The user of the operating system, or of the page, that did it.';
COMMENT ON COLUMN audit.tenant IS 'Null: the action was about the whole pipeline.';
COMMENT ON COLUMN audit.key IS 'The record''s key; null: the action was about no single record.';
COMMENT ON COLUMN audit.detail IS 'What was given with the action, such as the reason of a pause.';

ALTER TABLE pauses ADD COLUMN paused_by text;
COMMENT ON COLUMN pauses.paused_by IS 'Who paused it; null: it was not written down.';
"""
# A page of failing tenants, by name, reads no others. It reads the cursors once, and holds few of them.
INDEX = """
DROP INDEX ix_sync_cursors_failing;
CREATE INDEX ix_sync_cursors_failing ON sync_cursors (pipeline, tenant) WHERE failures > 0;
"""


def upgrade() -> None:
    """Make the table and the column, and the index anew."""
    connection = op.get_bind()
    connection.exec_driver_sql(TABLES)
    connection.exec_driver_sql(INDEX)


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
