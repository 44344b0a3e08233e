"""How far all records of a pipeline have been looked at, what a tenant's last run looked at, and who succeeds."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TAILS = """
CREATE TABLE tails (
    pipeline text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    snapshot pg_snapshot NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_tails PRIMARY KEY (pipeline, kind),
    CONSTRAINT ck_tails_kind CHECK (kind IN ('tail', 'base'))
) WITH (fillfactor = 50);
COMMENT ON TABLE tails IS
    'How far all records of a pipeline have been looked at. Of what the snapshot of the tail sees, every tenant was '
    'reminded, or had a run that looked. What that of the base sees, every cursor has handled.';
COMMENT ON COLUMN tails.stored_at IS
    'When a worker stored the snapshot last; that of the tail also where nothing is new, every few seconds.';
ALTER TABLE sync_cursors ADD COLUMN looked pg_snapshot;
COMMENT ON COLUMN sync_cursors.looked IS
    'What was visible when the last run claimed the cursor: that run reads it.';

ALTER TABLE sync_cursors DROP COLUMN succeeded_at;
ALTER TABLE pipelines
    ADD COLUMN failed boolean NOT NULL DEFAULT false,
    ADD COLUMN succeeded_at timestamptz;
COMMENT ON COLUMN pipelines.failed IS 'Something failed since succeeded_at: the next success is noted there.';
COMMENT ON COLUMN pipelines.succeeded_at IS 'When the handler took records for the first time after something failed.';
COMMENT ON TABLE quarantine IS 'Records that cannot be handled, kept apart so that the rest go on.';
COMMENT ON COLUMN sync_cursors.first_event_counts IS
    'How many bursts had their first event delivered in each bucket; see taskbridge/common/histogram.py.';
CREATE INDEX ix_quarantine_failed ON quarantine (pipeline, quarantined_at) WHERE cause = 'failed';
"""

ANNOUNCING = """
-- Wakes workers that listen, once for each transaction, and says nothing more: the rows are the truth.
CREATE FUNCTION @schema.announce_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('taskbridge', '');
    RETURN NULL;
END
$$;

CREATE FUNCTION @schema.announce(source text, announces boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- A name has 63 bytes at the most.
    name text := 'announce_' || left(source, 44) || '_' || left(md5(source), 8);
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS %I ON @schema.records', name);
    IF announces THEN
        EXECUTE format(
            'CREATE TRIGGER %I AFTER INSERT OR UPDATE ON @schema.records FOR EACH ROW WHEN (NEW.source = %L) '
            'EXECUTE FUNCTION @schema.announce_commit()',
            name, source
        );
    END IF;
END
$$;
COMMENT ON FUNCTION @schema.announce IS
    'Let commits of a source wake workers that listen, or no longer. It makes commits wait for each other.';
"""


def upgrade() -> None:
    """Make the table, the column and the functions."""
    connection = op.get_bind()
    connection.exec_driver_sql(TAILS)
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    connection.exec_driver_sql(ANNOUNCING.replace("@schema", schema).replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
