"""One log of records for every source, the pipelines that read it, and what each message was recorded as."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

LOG = """
DROP VIEW record_states;
ALTER TABLE records RENAME TO former_records;
ALTER INDEX pk_records RENAME TO pk_former_records;
ALTER INDEX ix_records_unmatched RENAME TO ix_former_records_unmatched;
ALTER TABLE former_records DROP CONSTRAINT ck_records_matched;

CREATE TABLE records (
    id bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL DEFAULT '',
    key text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    xid xid8 NOT NULL,
    document jsonb,
    deleted boolean NOT NULL DEFAULT false,
    delay_ms bigint,
    criterion text,
    reason text,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    discarded_at timestamptz,
    CONSTRAINT ck_records_matched CHECK ((tenant = '') = (reason IS NOT NULL))
);
COMMENT ON TABLE records IS
    'The log: one row per source, tenant and key. Without a tenant: no criterion matched, and the reason.';
COMMENT ON COLUMN records.id IS 'The row''s first revision; rows of one transaction are read in this order.';
COMMENT ON COLUMN records.revision IS 'Another with each change of the row, and never one again; a trigger sets it.';
COMMENT ON COLUMN records.xid IS 'The transaction that wrote the row last; a trigger sets it.';
COMMENT ON COLUMN records.document IS 'Null: the row is in the table that was adopted as the source.';
COMMENT ON COLUMN records.deleted IS 'The row is gone from the adopted table.';
COMMENT ON COLUMN records.delay_ms IS
    'Least time since the tenant''s last run, for pipelines with delays; null: the smallest that the pipeline has.';
COMMENT ON COLUMN records.changed_at IS 'When the row was written last; a trigger sets it.';
COMMENT ON COLUMN records.discarded_at IS 'No criterion matched, and somebody gave the record up.';

INSERT INTO records (id, source, tenant, key, revision, xid, document, recorded_at, changed_at)
SELECT id, 'invoices', tenant, number, revision, xid, document, recorded_at, coalesce(changed_at, recorded_at)
FROM invoices;
INSERT INTO records (id, source, tenant, key, revision, xid, document, delay_ms, criterion, reason, recorded_at,
                     changed_at, discarded_at)
SELECT id, pipeline, coalesce(tenant, ''), message_id, revision, xid, payload, delay_ms, criterion, reason, recorded_at,
       coalesce(changed_at, recorded_at), discarded_at
FROM former_records;

ALTER TABLE records ADD CONSTRAINT pk_records PRIMARY KEY (source, tenant, key);
CREATE INDEX ix_records_source_tenant_xid_id ON records (source, tenant, xid, id);
CREATE INDEX ix_records_source_xid_id ON records (source, xid, id);
CREATE INDEX ix_records_unmatched ON records (source, id) WHERE tenant = '';

CREATE TABLE messages (
    source text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    CONSTRAINT pk_messages PRIMARY KEY (source, key)
);
COMMENT ON TABLE messages IS
    'Ids of the messages that were recorded, so that each is once in its source, whatever tenant criteria give it.';
INSERT INTO messages SELECT pipeline, message_id FROM former_records;

CREATE TABLE pipelines (
    pipeline text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    start pg_snapshot NOT NULL DEFAULT '1:1:',
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    guessed boolean NOT NULL DEFAULT false,
    CONSTRAINT pk_pipelines PRIMARY KEY (pipeline)
);
COMMENT ON TABLE pipelines IS
    'The pipelines that were seen: what each reads, and the snapshot at which its tenants'' cursors begin.';
COMMENT ON COLUMN pipelines.guessed IS
    'A migration guessed the source: a pipeline with criteria that reads another may say so.';
-- One that has cursors, and no messages, has read invoices, or it had messages and all of them are pruned.
INSERT INTO pipelines (pipeline, source, guessed)
SELECT DISTINCT pipeline, pipeline, false FROM former_records
UNION
SELECT DISTINCT c.pipeline, 'invoices', c.pipeline <> 'invoices'
FROM sync_cursors c
JOIN records r ON r.source = 'invoices' AND r.tenant = c.tenant
WHERE NOT EXISTS (SELECT FROM former_records f WHERE f.pipeline = c.pipeline);

CREATE INDEX ix_sync_cursors_failing ON sync_cursors (pipeline) WHERE failures > 0;

-- Ids and revisions come from one sequence, above all that were given before.
SELECT setval('taskbridge_revisions', greatest((SELECT last_value FROM taskbridge_revisions), max(id), max(revision)))
FROM records HAVING max(id) IS NOT NULL;
ALTER SEQUENCE taskbridge_revisions RENAME TO revisions;
COMMENT ON SEQUENCE revisions IS
    'Revisions of records. Each change of a record takes the next, so that none is used twice.';

DROP TABLE invoices;
DROP TABLE former_records;
DROP FUNCTION taskbridge_record_changed();

CREATE FUNCTION is_handled(
    xid xid8, id bigint, snapshot pg_snapshot, target pg_snapshot, at_xid xid8, at_id bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_visible_in_snapshot(xid, snapshot)
    OR coalesce(pg_visible_in_snapshot(xid, target) AND (xid, id) <= (at_xid, at_id), false);
COMMENT ON FUNCTION is_handled IS
    'Whether a record lies behind a cursor: visible in its snapshot, or passed in the sweep that is on.';

CREATE VIEW record_states AS
SELECT p.pipeline,
       r.tenant,
       r.key AS external_id,
       CASE
           WHEN q.retry_at IS NOT NULL THEN 'pending'
           WHEN q.discarded_at IS NOT NULL THEN 'discarded'
           WHEN q.external_id IS NOT NULL THEN 'quarantined'
           WHEN is_handled(r.xid, r.id, coalesce(c.snapshot, p.start), c.target, c.at_xid, c.at_id) THEN 'handled'
           ELSE 'pending'
       END AS state
FROM (
    SELECT pipeline, source, start FROM pipelines
    UNION ALL
    -- While nothing has read invoices yet, they are those of the built-in journal's.
    SELECT 'invoices', 'invoices', '1:1:' WHERE NOT EXISTS (SELECT FROM pipelines WHERE source = 'invoices')
) p
JOIN records r ON r.source = p.source AND r.tenant <> ''
LEFT JOIN sync_cursors c ON c.pipeline = p.pipeline AND c.tenant = r.tenant
LEFT JOIN quarantine q
    ON q.pipeline = p.pipeline AND q.tenant = r.tenant AND q.external_id = r.key AND q.revision = r.revision;
COMMENT ON VIEW record_states IS
    'Per pipeline and record: pending, handled (also: older than the pipeline''s start), quarantined, or discarded.';
"""

# Names in functions have their schema, or a search path of the function's own: pg_restore and replication have none.
FUNCTIONS = r"""
-- As text, so that the table may be replaced by a partitioned one.
CREATE FUNCTION @schema.owns_records() RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = '@schema.records'::regclass $$;
COMMENT ON FUNCTION @schema.owns_records IS 'Whether the role has the rights of the owner of the records.';

-- For messages: without what would begin a new line, or colour a terminal.
CREATE FUNCTION @schema.shown(text) RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN quote_literal(regexp_replace(left($1, 20), @control, '?', 'g'));

-- It runs with its owner's rights, so that whoever may write a record needs no other right.
CREATE FUNCTION @schema.stamp_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        -- Nobody reads what no criterion matched.
        IF OLD.tenant = '' AND NEW.tenant = '' THEN
            NEW.xid := OLD.xid;
            NEW.id := OLD.id;
            NEW.revision := OLD.revision;
            RETURN NEW;
        END IF;
    END IF;
    IF NEW.tenant <> '' AND NOT NEW.deleted AND jsonb_typeof(NEW.document) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
            'tenant %s, record %s: the document is no JSON object: pass one',
            @schema.shown(NEW.tenant), @schema.shown(NEW.key));
    END IF;
    NEW.xid := pg_current_xact_id();
    NEW.revision := nextval('@schema.revisions');
    IF TG_OP = 'INSERT' THEN
        NEW.id := NEW.revision;
    ELSE
        NEW.id := OLD.id;
        NEW.changed_at := now();
        IF NEW.source = OLD.source AND NEW.tenant = OLD.tenant AND NEW.key = OLD.key THEN
            RETURN NEW;
        END IF;
    END IF;
    problem := CASE
        WHEN NEW.tenant <> '' AND NEW.source !~ '^[a-z][a-z0-9_-]{0,62}$' THEN format(
            'the source %s is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter',
            @schema.shown(NEW.source))
        WHEN NEW.tenant = '' AND NEW.reason IS NULL THEN
            'the tenant is empty: pass the key of the business that the work belongs to'
        WHEN char_length(NEW.tenant) > 200 OR NEW.tenant ~ @control THEN format(
            'the tenant %s is not allowed: use 1 to 200 characters, none of them a control character',
            @schema.shown(NEW.tenant))
        WHEN NEW.tenant ~ @space THEN
            format('the tenant %s begins or ends with space: strip it', @schema.shown(NEW.tenant))
        WHEN NEW.key = '' OR char_length(NEW.key) > 200 OR NEW.key ~ @control THEN format(
            'tenant %s: the key %s is not allowed: use 1 to 200 characters, none of them a control character',
            @schema.shown(NEW.tenant), @schema.shown(NEW.key))
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem;
    END IF;
    RETURN NEW;
END
$$;

-- It has its owner's rights too. A data-only restore adds the identifier that it brings to the one here.
CREATE OR REPLACE FUNCTION @schema.taskbridge_check_cluster() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (
        SELECT bool_and(c.system_identifier = s.system_identifier)
        FROM @schema.taskbridge_cluster c, pg_control_system() s
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'the database was restored into another cluster, where its transaction ids mean nothing'
            USING ERRCODE = 'TB001', HINT = 'Stop all workers and run: taskbridge rebase';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER records_in_cluster BEFORE INSERT OR UPDATE ON @schema.records
    FOR EACH STATEMENT EXECUTE FUNCTION @schema.taskbridge_check_cluster();
-- A rebase, and a restore of data alone, set `taskbridge.keep_ids`: the rows are those that were there before. Only the
-- owner may, since a row with an id of one's own choice counts as handled, or as one of another cluster.
CREATE TRIGGER records_written BEFORE INSERT ON @schema.records
    FOR EACH ROW
    WHEN (current_setting('taskbridge.keep_ids', true) IS DISTINCT FROM 'on' OR NOT @schema.owns_records())
    EXECUTE FUNCTION @schema.stamp_record();
CREATE TRIGGER records_changed BEFORE UPDATE ON @schema.records
    FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.* AND (
        current_setting('taskbridge.keep_ids', true) IS DISTINCT FROM 'on' OR NOT @schema.owns_records()
    ))
    EXECUTE FUNCTION @schema.stamp_record();
-- Rows that logical replication brings have the ids of another cluster.
ALTER TABLE @schema.records ENABLE ALWAYS TRIGGER records_written, ENABLE ALWAYS TRIGGER records_changed;

-- For producers in every language. It has the caller's rights.
CREATE FUNCTION @schema.record(source text, tenant text, key text, document jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO @schema.records AS r (source, tenant, key, document) VALUES ($1, $2, $3, $4)
    ON CONFLICT ON CONSTRAINT pk_records DO UPDATE SET document = excluded.document, deleted = false
    WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION @schema.record IS
    'Write or update one record of a source; returns whether anything changed.';
"""
# What Python's check_tenant and check_key refuse, as the server's regular expressions have it.
CONTROL = r"""'[\u0001-\u001F\u007F-\u009F\u2028\u2029]'"""
SPACES = r"\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000"
SPACE = f"'^[{SPACES}]|[{SPACES}]$'"


def upgrade() -> None:
    """Move invoices and records into one log, and give the functions that it needs."""
    connection = op.get_bind()
    connection.exec_driver_sql(LOG)
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    functions = FUNCTIONS.replace("@control", CONTROL).replace("@space", SPACE)
    connection.exec_driver_sql(functions.replace("@schema", schema).replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
