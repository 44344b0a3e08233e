"""Revisions that never repeat, ids that only triggers set, records given up, and whose failures are counted."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW record_states AS
SELECT r.pipeline,
       r.tenant,
       r.external_id,
       CASE
           WHEN q.retry_at IS NOT NULL THEN 'pending'
           WHEN q.discarded_at IS NOT NULL THEN 'discarded'
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
    CROSS JOIN (@readers) p
    UNION ALL
    SELECT pipeline, tenant, message_id, revision, xid, id FROM records WHERE tenant IS NOT NULL
) r
LEFT JOIN sync_cursors c ON c.pipeline = r.pipeline AND c.tenant = r.tenant
LEFT JOIN quarantine q
    ON q.pipeline = r.pipeline AND q.tenant = r.tenant AND q.external_id = r.external_id AND q.revision = r.revision;
COMMENT ON VIEW record_states IS
    'Per pipeline and record: pending, handled, quarantined, or discarded by an operator.';
"""
# Pipelines are known by their cursors. While none has read invoices yet, they are those of the built-in journal's.
READERS = """
        WITH known AS (
            SELECT DISTINCT s.pipeline FROM sync_cursors s
            WHERE NOT EXISTS (SELECT FROM records n WHERE n.pipeline = s.pipeline)
        )
        SELECT pipeline FROM known
        UNION ALL
        SELECT 'invoices' COLLATE "C" WHERE NOT EXISTS (SELECT FROM known)
    """
READERS_BEFORE = """
        SELECT 'invoices' COLLATE "C" AS pipeline
        UNION
        SELECT DISTINCT s.pipeline FROM sync_cursors s
        WHERE NOT EXISTS (SELECT FROM records n WHERE n.pipeline = s.pipeline)
    """

UP = """
DROP VIEW record_states;

ALTER TABLE invoices
    ALTER COLUMN revision DROP DEFAULT,
    ALTER COLUMN revision TYPE bigint,
    ALTER COLUMN xid DROP DEFAULT,
    ADD COLUMN changed_at timestamptz;
ALTER TABLE records
    ALTER COLUMN revision DROP DEFAULT,
    ALTER COLUMN revision TYPE bigint,
    ALTER COLUMN xid DROP DEFAULT,
    ADD COLUMN changed_at timestamptz,
    ADD COLUMN discarded_at timestamptz;
ALTER TABLE sync_cursors
    ADD COLUMN deaths integer NOT NULL DEFAULT 0,
    ADD COLUMN suspect_revision bigint,
    ADD COLUMN outages integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN sync_cursors.deaths IS 'How often, beside the attempts, a run died that had the suspect alone.';
COMMENT ON COLUMN sync_cursors.suspect_revision IS 'The one suspect that attempts and deaths are counted of.';
COMMENT ON COLUMN sync_cursors.outages IS 'How many of the attempts with the suspect alone said "downstream".';
ALTER TABLE quarantine ALTER COLUMN revision TYPE bigint;
ALTER TABLE deliveries ALTER COLUMN revision TYPE bigint;
COMMENT ON COLUMN records.discarded_at IS 'No criterion matched, and somebody gave the record up.';

-- Where there are revisions, it starts above all that their column could hold: rows that are gone had some too.
CREATE SEQUENCE taskbridge_revisions;
SELECT setval('taskbridge_revisions', 2147483647)
WHERE EXISTS (SELECT FROM invoices) OR EXISTS (SELECT FROM records) OR EXISTS (SELECT FROM sync_cursors)
   OR EXISTS (SELECT FROM quarantine) OR EXISTS (SELECT FROM deliveries);
COMMENT ON SEQUENCE taskbridge_revisions IS
    'Revisions of records. Each change of a record takes the next, so that none is used twice.';

-- It runs with its owner's rights, so that whoever may write a record needs no other right. Every name in it has its
-- schema, because pg_restore and logical replication have no search path.
DO $$
BEGIN
    EXECUTE $function$
        CREATE OR REPLACE FUNCTION taskbridge_record_changed() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER AS $body$
        BEGIN
            NEW.xid := pg_catalog.pg_current_xact_id();
            NEW.revision := pg_catalog.nextval($function$
        || quote_literal(quote_ident(current_schema()) || '.taskbridge_revisions') || $function$);
            IF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN
                NEW.changed_at := pg_catalog.now();
            END IF;
            RETURN NEW;
        END
        $body$
    $function$;
END
$$;
@triggers
"""
# A rebase, and a restore of data alone, set `taskbridge.keep_ids`: the rows are those that were there before.
TRIGGERS = """
DROP TRIGGER @table_changed ON @table;
CREATE TRIGGER @table_written BEFORE INSERT ON @table
    FOR EACH ROW WHEN (current_setting('taskbridge.keep_ids', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION taskbridge_record_changed();
CREATE TRIGGER @table_changed BEFORE UPDATE ON @table
    FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.* AND current_setting('taskbridge.keep_ids', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION taskbridge_record_changed();
-- Rows that logical replication brings have the ids of another cluster.
ALTER TABLE @table ENABLE ALWAYS TRIGGER @table_written, ENABLE ALWAYS TRIGGER @table_changed;
COMMENT ON COLUMN @table.xid IS 'The transaction that wrote the row last; a trigger sets it.';
COMMENT ON COLUMN @table.revision IS 'Another with each change of the row, and never one again; a trigger sets it.';
COMMENT ON COLUMN @table.changed_at IS 'When the row changed last; null: not since it was recorded.';
"""

DOWN = """
DROP VIEW record_states;
@triggers
CREATE OR REPLACE FUNCTION taskbridge_record_changed() RETURNS trigger LANGUAGE plpgsql SECURITY INVOKER AS $$
BEGIN
    NEW.xid := pg_current_xact_id();
    NEW.revision := OLD.revision + 1;
    RETURN NEW;
END
$$;
DROP SEQUENCE taskbridge_revisions;

-- The same for every table, so that rows about one revision still find each other.
ALTER TABLE invoices
    ALTER COLUMN revision TYPE integer USING mod(revision, 2147483648),
    ALTER COLUMN revision SET DEFAULT 1,
    ALTER COLUMN xid SET DEFAULT pg_current_xact_id(),
    DROP COLUMN changed_at;
ALTER TABLE records
    ALTER COLUMN revision TYPE integer USING mod(revision, 2147483648),
    ALTER COLUMN revision SET DEFAULT 1,
    ALTER COLUMN xid SET DEFAULT pg_current_xact_id(),
    DROP COLUMN changed_at,
    DROP COLUMN discarded_at;
ALTER TABLE sync_cursors DROP COLUMN deaths, DROP COLUMN suspect_revision, DROP COLUMN outages;
ALTER TABLE quarantine ALTER COLUMN revision TYPE integer USING mod(revision, 2147483648);
ALTER TABLE deliveries ALTER COLUMN revision TYPE integer USING mod(revision, 2147483648);
"""
TRIGGERS_BEFORE = """
DROP TRIGGER @table_written ON @table;
DROP TRIGGER @table_changed ON @table;
CREATE TRIGGER @table_changed BEFORE UPDATE ON @table
    FOR EACH ROW WHEN (OLD.xid = NEW.xid AND OLD.* IS DISTINCT FROM NEW.*)
    EXECUTE FUNCTION taskbridge_record_changed();
COMMENT ON COLUMN @table.xid IS NULL;
COMMENT ON COLUMN @table.revision IS NULL;
"""


def _run(text: str, triggers: str, readers: str) -> None:
    both = "".join(triggers.replace("@table", table) for table in ("invoices", "records"))
    op.get_bind().exec_driver_sql(text.replace("@triggers", both) + VIEW.replace("@readers", readers))


def upgrade() -> None:
    """Draw revisions from one sequence, let triggers alone set what they set, know what was given up and who failed."""
    _run(UP, TRIGGERS, READERS)


def downgrade() -> None:
    """Count revisions by row again; what was given up is unmatched."""
    _run(DOWN, TRIGGERS_BEFORE, READERS_BEFORE)
