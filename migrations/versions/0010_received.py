"""What a receiver of webhooks remembers: the ids of deliveries, and the versions of records."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE received (
    source text COLLATE "C" NOT NULL,
    delivery text COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_received PRIMARY KEY (source, delivery)
);
CREATE INDEX ix_received_received_at ON received (received_at);
COMMENT ON TABLE received IS 'Deliveries of webhooks that were taken, by their sender''s id; kept for 30 days.';
CREATE TABLE record_versions (
    source text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version numeric NOT NULL,
    CONSTRAINT pk_record_versions PRIMARY KEY (source, tenant, key)
);
COMMENT ON TABLE record_versions IS 'The newest version of a record that a webhook brought; it goes with the record.';
"""


def upgrade() -> None:
    """Make the two tables."""
    op.get_bind().exec_driver_sql(TABLES)


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
