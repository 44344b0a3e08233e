"""Records of pipelines that match criteria, and when a tenant's records were last taken."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE records (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_records PRIMARY KEY,
    pipeline text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    delay_ms bigint,
    criterion text,
    reason text,
    payload jsonb NOT NULL,
    revision integer NOT NULL DEFAULT 1,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_records_pipeline_message_id UNIQUE (pipeline, message_id),
    CONSTRAINT ck_records_matched CHECK (
        CASE WHEN tenant IS NULL THEN reason IS NOT NULL
             ELSE reason IS NULL AND delay_ms IS NOT NULL AND criterion IS NOT NULL END
    )
);
CREATE INDEX ix_records_pipeline_tenant_xid_id ON records (pipeline, tenant, xid, id);
CREATE INDEX ix_records_unmatched ON records (pipeline, id) WHERE tenant IS NULL;
COMMENT ON TABLE records IS
    'Records of pipelines with criteria; without a tenant: no criterion matched, and the reason.';
CREATE TRIGGER records_changed BEFORE UPDATE ON records
    FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION taskbridge_record_changed();

ALTER TABLE sync_cursors ADD COLUMN last_taken_at timestamptz;
COMMENT ON COLUMN sync_cursors.last_taken_at IS
    'Start of the last run that took records; last_run_at is that of the last run.';

CREATE OR REPLACE VIEW record_states AS
SELECT r.pipeline,
       r.tenant,
       r.external_id,
       CASE
           WHEN q.external_id IS NOT NULL THEN 'quarantined'
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

DOWN = """
CREATE OR REPLACE VIEW record_states AS
SELECT p.pipeline,
       i.tenant,
       i.number AS external_id,
       CASE
           WHEN q.external_id IS NOT NULL THEN 'quarantined'
           WHEN c.snapshot IS NULL THEN 'pending'
           WHEN pg_visible_in_snapshot(i.xid, c.snapshot) THEN 'handled'
           WHEN c.target IS NOT NULL AND pg_visible_in_snapshot(i.xid, c.target)
                AND (i.xid, i.id) <= (c.at_xid, c.at_id) THEN 'handled'
           ELSE 'pending'
       END AS state
FROM invoices i
CROSS JOIN (SELECT 'invoices' COLLATE "C" AS pipeline UNION SELECT DISTINCT pipeline FROM sync_cursors) p
LEFT JOIN sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = i.tenant
LEFT JOIN quarantine q
    ON q.pipeline = p.pipeline AND q.tenant = i.tenant AND q.external_id = i.number AND q.revision = i.revision;
ALTER TABLE sync_cursors DROP COLUMN last_taken_at;
DROP TABLE records;
"""


def upgrade() -> None:
    """Make the table and the column, and let the view show both kinds of records."""
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    """Drop them, with what they hold."""
    op.get_bind().exec_driver_sql(DOWN)
