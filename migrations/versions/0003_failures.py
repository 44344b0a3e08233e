"""What an operator and the failure policy need: narrowing, quarantine with a way back, pauses, the cluster."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

VIEW = """CREATE OR REPLACE VIEW record_states AS
SELECT r.pipeline,
       r.tenant,
       r.external_id,
       CASE
@cases
           WHEN c.snapshot IS NULL THEN 'pending'
           WHEN pg_visible_in_snapshot(r.xid, c.snapshot) THEN 'handled'
           WHEN c.target IS NOT NULL AND pg_visible_in_snapshot(r.xid, c.target)
                AND (r.xid, r.id) <= (c.at_xid, c.at_id) THEN 'handled'
           ELSE 'pending'
       END AS state
FROM (
    SELECT p.pipeline, i.tenant, i.number AS external_id, i.revision, i.xid, i.id
    FROM invoices i
    CROSS JOIN (
        SELECT 'invoices' COLLATE "C" AS pipeline
        UNION
        SELECT DISTINCT s.pipeline FROM sync_cursors s
        WHERE NOT EXISTS (SELECT FROM records n WHERE n.pipeline = s.pipeline)
    ) p
    UNION ALL
    SELECT pipeline, tenant, message_id, revision, xid, id FROM records WHERE tenant IS NOT NULL
) r
LEFT JOIN sync_cursors c ON c.pipeline = r.pipeline AND c.tenant = r.tenant
LEFT JOIN quarantine q
    ON q.pipeline = r.pipeline AND q.tenant = r.tenant AND q.external_id = r.external_id AND q.revision = r.revision;
"""
SET_ASIDE_BEFORE = """\
           WHEN q.external_id IS NOT NULL THEN 'quarantined'"""
SET_ASIDE = f"""\
           WHEN q.retry_at IS NOT NULL THEN 'pending'
           WHEN q.discarded_at IS NOT NULL THEN 'discarded'
{SET_ASIDE_BEFORE}"""

UP = """
ALTER TABLE sync_cursors
    DROP COLUMN paused_at,
    ADD COLUMN batch_limit integer,
    ADD COLUMN suspects integer NOT NULL DEFAULT 0,
    ADD COLUMN attempts integer NOT NULL DEFAULT 0,
    ADD COLUMN failing_since timestamptz,
    ADD COLUMN succeeded_at timestamptz;
COMMENT ON COLUMN sync_cursors.batch_limit IS 'Most records of the next batch; null: the pipeline''s batch size.';
COMMENT ON COLUMN sync_cursors.suspects IS 'Of so many next records one cannot be handled; 0: none is known.';
COMMENT ON COLUMN sync_cursors.attempts IS 'How often in a row a batch of the present size failed.';
COMMENT ON COLUMN sync_cursors.failing_since IS 'First failure of a batch that held the suspects.';
COMMENT ON COLUMN sync_cursors.succeeded_at IS 'Last time that the handler took records.';

ALTER TABLE quarantine
    ADD COLUMN cause text NOT NULL DEFAULT 'failed',
    ADD COLUMN failing_since timestamptz,
    ADD COLUMN retry_at timestamptz,
    ADD COLUMN discarded_at timestamptz,
    ADD CONSTRAINT ck_quarantine_cause CHECK (cause IN ('failed', 'rejected'));
CREATE INDEX ix_quarantine_retry ON quarantine (pipeline, tenant) WHERE retry_at IS NOT NULL;
COMMENT ON COLUMN quarantine.revision IS 'The record as it was; once it changes in the source, this row means nothing.';
COMMENT ON COLUMN quarantine.retry_at IS 'Somebody asked for another try; the tenant''s next sweep takes it.';

CREATE TABLE pauses (
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    reason text,
    paused_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_pauses PRIMARY KEY (pipeline, tenant)
);
COMMENT ON TABLE pauses IS
    'Tenants that an operator holds; with an empty tenant, the whole pipeline.';

-- A transaction id means something in one cluster only.
CREATE TABLE taskbridge_cluster (
    system_identifier bigint NOT NULL
);
INSERT INTO taskbridge_cluster SELECT system_identifier FROM pg_control_system();
COMMENT ON TABLE taskbridge_cluster IS
    'The cluster whose transaction ids the records and cursors hold.';
-- It runs with its owner's rights, so that whoever may write a record needs no other right, and with a search path of
-- its own, because pg_restore has none. A data-only restore adds the identifier that it brings to the one here.
CREATE FUNCTION taskbridge_check_cluster() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF (
        SELECT bool_and(c.system_identifier = s.system_identifier) FROM taskbridge_cluster c, pg_control_system() s
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'the database was restored into another cluster, where its transaction ids mean nothing'
            USING ERRCODE = 'TB001', HINT = 'Stop all workers and run: taskbridge rebase';
    END IF;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE 'ALTER FUNCTION taskbridge_check_cluster() SET search_path = pg_catalog, '
        || quote_ident(current_schema()) || ', pg_temp';
END
$$;
CREATE TRIGGER invoices_in_cluster BEFORE INSERT OR UPDATE ON invoices
    FOR EACH STATEMENT EXECUTE FUNCTION taskbridge_check_cluster();
CREATE TRIGGER records_in_cluster BEFORE INSERT OR UPDATE ON records
    FOR EACH STATEMENT EXECUTE FUNCTION taskbridge_check_cluster();

-- A statement that sets xid itself is a rebase: the record did not change.
DROP TRIGGER invoices_changed ON invoices;
CREATE TRIGGER invoices_changed BEFORE UPDATE ON invoices
    FOR EACH ROW WHEN (OLD.xid = NEW.xid AND OLD.* IS DISTINCT FROM NEW.*)
    EXECUTE FUNCTION taskbridge_record_changed();
DROP TRIGGER records_changed ON records;
CREATE TRIGGER records_changed BEFORE UPDATE ON records
    FOR EACH ROW WHEN (OLD.xid = NEW.xid AND OLD.* IS DISTINCT FROM NEW.*)
    EXECUTE FUNCTION taskbridge_record_changed();

@view
COMMENT ON VIEW record_states IS
    'Per pipeline and record: pending, handled, quarantined, or discarded by an operator.';
"""

DOWN = """
@view
COMMENT ON VIEW record_states IS
    'Per pipeline and record: pending, handled or quarantined.';
DROP TRIGGER invoices_changed ON invoices;
CREATE TRIGGER invoices_changed BEFORE UPDATE ON invoices
    FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION taskbridge_record_changed();
DROP TRIGGER records_changed ON records;
CREATE TRIGGER records_changed BEFORE UPDATE ON records
    FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION taskbridge_record_changed();
DROP TRIGGER invoices_in_cluster ON invoices;
DROP TRIGGER records_in_cluster ON records;
DROP FUNCTION taskbridge_check_cluster();
DROP TABLE taskbridge_cluster;
DROP TABLE pauses;
DROP INDEX ix_quarantine_retry;
ALTER TABLE quarantine
    DROP COLUMN cause, DROP COLUMN failing_since, DROP COLUMN retry_at, DROP COLUMN discarded_at;
ALTER TABLE sync_cursors
    ADD COLUMN paused_at timestamptz,
    DROP COLUMN batch_limit, DROP COLUMN suspects, DROP COLUMN attempts, DROP COLUMN failing_since,
    DROP COLUMN succeeded_at;
"""


def upgrade() -> None:
    """Add the columns and tables, and let the view show what was discarded or is tried again."""
    op.get_bind().exec_driver_sql(UP.replace("@view", VIEW.replace("@cases", SET_ASIDE)))


def downgrade() -> None:
    """Drop them, with what they hold."""
    op.get_bind().exec_driver_sql(DOWN.replace("@view", VIEW.replace("@cases", SET_ASIDE_BEFORE)))
