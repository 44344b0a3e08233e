"""Invoices, cursors, quarantine, the journal, and the view of record states."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

UP = """
CREATE TABLE invoices (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_invoices PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    number text COLLATE "C" NOT NULL,
    document jsonb NOT NULL,
    revision integer NOT NULL DEFAULT 1,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_invoices_tenant_number UNIQUE (tenant, number)
);
CREATE INDEX ix_invoices_tenant_xid_id ON invoices (tenant, xid, id);
COMMENT ON TABLE invoices IS
    'Records of the pipeline invoices. xid is the transaction that wrote the row last.';

CREATE FUNCTION taskbridge_record_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.xid := pg_current_xact_id();
    NEW.revision := OLD.revision + 1;
    RETURN NEW;
END
$$;
CREATE TRIGGER invoices_changed BEFORE UPDATE ON invoices
    FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION taskbridge_record_changed();

CREATE TABLE sync_cursors (
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    snapshot pg_snapshot NOT NULL DEFAULT '1:1:',
    target pg_snapshot,
    at_xid xid8,
    at_id bigint,
    owner text COLLATE "C",
    sweeps bigint NOT NULL DEFAULT 0,
    runs bigint NOT NULL DEFAULT 0,
    events bigint NOT NULL DEFAULT 0,
    records bigint NOT NULL DEFAULT 0,
    burst_runs bigint NOT NULL DEFAULT 0,
    burst_events bigint NOT NULL DEFAULT 0,
    first_event_ms integer,
    last_run_at timestamptz,
    failures integer NOT NULL DEFAULT 0,
    last_error text,
    failed_at timestamptz,
    paused_at timestamptz,
    CONSTRAINT pk_sync_cursors PRIMARY KEY (pipeline, tenant)
) WITH (fillfactor = 50);
COMMENT ON TABLE sync_cursors IS
    'How far each tenant''s records have been handled: all that is visible in snapshot, and of those visible in '
    'target the ones up to (at_xid, at_id).';

CREATE TABLE quarantine (
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    external_id text COLLATE "C" NOT NULL,
    revision integer NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_quarantine PRIMARY KEY (pipeline, tenant, external_id)
);
COMMENT ON TABLE quarantine IS
    'Records that cannot be handled, set aside so that the rest go on.';

CREATE TABLE deliveries (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_deliveries PRIMARY KEY,
    pipeline text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    external_id text COLLATE "C" NOT NULL,
    revision integer NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT now(),
    token text COLLATE "C" NOT NULL
);
CREATE INDEX ix_deliveries_pipeline_tenant_external_id ON deliveries (pipeline, tenant, external_id);
COMMENT ON TABLE deliveries IS
    'The journal: one row per record that it took.';

CREATE VIEW record_states AS
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
COMMENT ON VIEW record_states IS
    'Per pipeline and record: pending, handled or quarantined.';
"""

DOWN = """
DROP VIEW record_states;
DROP TABLE deliveries;
DROP TABLE quarantine;
DROP TABLE sync_cursors;
DROP TABLE invoices;
DROP FUNCTION taskbridge_record_changed();
"""


def upgrade() -> None:
    """Make all."""
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    """Drop all, with what they hold."""
    op.get_bind().exec_driver_sql(DOWN)
