"""Nothing that writes a record draws from a sequence, and an adopted table's columns are known by their types as well.

`nextval` changes `lastval()` in the session that it runs in, which is that of a user's program.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

NUMBERS = r"""
-- It is called with a writer's search path, so each name says its schema. It keeps its plan, which SQL does not.
CREATE FUNCTION @schema.last_id(source text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT r.id FROM @schema.records r
        WHERE r.source OPERATOR(pg_catalog.=) $1 AND r.xid OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()
          AND r.id OPERATOR(pg_catalog.>) 0
        ORDER BY r.id DESC
        LIMIT 1
    );
END
$$;
COMMENT ON FUNCTION @schema.last_id IS 'The highest id of a record of this source and transaction; null: it has none.';

-- The millisecond with 21 bits below it, or one more than the last of this transaction. So no two records that a
-- transaction writes into a source have the same id, also while the clock goes back. A setting has the last one and its
-- source; where a RESET has taken it, or it is another source's, the records say it. Parsed here once, so a
-- writer's settings change nothing of it, and it becomes a part of the expression that calls it.
CREATE FUNCTION @schema.next_id(source text, room bigint DEFAULT 0) RETURNS bigint LANGUAGE sql VOLATILE
RETURN split_part(set_config(
    'taskbridge.last_id',
    (room + greatest(
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 21,
        1 + CASE
            WHEN split_part(current_setting('taskbridge.last_id', true), ' ', 2) = source
             AND split_part(current_setting('taskbridge.last_id', true), ' ', 1)::numeric BETWEEN 0 AND 9e18
            THEN split_part(current_setting('taskbridge.last_id', true), ' ', 1)::bigint
            ELSE @schema.last_id(source)
        END
    ))::text || ' ' || source,
    true
), ' ', 1)::bigint - room;
COMMENT ON FUNCTION @schema.next_id IS
    'An id for a record of a source, above those that this transaction gave before; the next `room` ids are free too.';

-- It has its owner's rights and the writer's search path. So each name says its schema, and there is no operator, nor
-- IS DISTINCT FROM, which looks for one. Of a row that is new, OLD has only nulls.
CREATE OR REPLACE FUNCTION @schema.stamp_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    -- Nobody reads what no criterion matched.
    IF pg_catalog.texteq(OLD.tenant, '') AND pg_catalog.texteq(NEW.tenant, '') THEN
        NEW.xid := OLD.xid;
        NEW.id := OLD.id;
        NEW.revision := OLD.revision;
        RETURN NEW;
    END IF;
    -- The list guards against a mistake, and not against a writer who sets it: who may write records may change any.
    IF @schema.is_allowed(
        NEW.source, NEW.tenant, NEW.key, NEW.document, pg_catalog.current_setting('taskbridge.adopted', true)
    ) IS NOT TRUE THEN
        PERFORM @schema.refuse_record(
            NEW.source, NEW.tenant, NEW.key, NEW.document, NEW.deleted, NEW.reason, OLD.id IS NULL,
            (pg_catalog.texteq(NEW.source, OLD.source) AND pg_catalog.texteq(NEW.tenant, OLD.tenant)
                AND pg_catalog.texteq(NEW.key, OLD.key)) IS NOT TRUE);
    END IF;
    NEW.xid := pg_catalog.pg_current_xact_id();
    NEW.id := @schema.next_id(NEW.source);
    NEW.revision := @schema.next_revision(OLD.revision);
    NEW.changed_at := CASE WHEN OLD.id IS NULL THEN NEW.changed_at ELSE pg_catalog.now() END;
    RETURN NEW;
END
$$;
COMMENT ON COLUMN records.id IS 'Rows of one transaction are read in this order; another with each change of the row.';

ALTER TABLE adopted ALTER COLUMN version SET DEFAULT @schema.next_revision(NULL);
DROP SEQUENCE revisions;
"""
REVISIONS = r"""
-- Microseconds of the Unix epoch: above all that were given, also by a cluster from which this database was restored.
CREATE FUNCTION @schema.next_revision(former bigint) RETURNS bigint LANGUAGE sql VOLATILE
RETURN greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint, former + 1);
COMMENT ON FUNCTION @schema.next_revision IS
    'The revision of a record that changes, above its former one; null: it is new.';
"""
COLUMNS = r"""
ALTER TABLE adopted ADD COLUMN column_types oid[], ADD COLUMN column_kinds text[];
COMMENT ON COLUMN adopted.column_types IS 'The types of these columns when the table was adopted.';
COMMENT ON COLUMN adopted.column_kinds IS
    'How the values of tenant and key are written as text: where that has changed, records have other keys.';
COMMENT ON COLUMN adopted.again_below IS
    'A backfill writes records again that this transaction or an earlier one wrote.';
CREATE OR REPLACE FUNCTION @schema.number_columns() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.numbered := NEW.relation;
    SELECT array_agg(t.attnum ORDER BY c.place), array_agg(t.atttypid ORDER BY c.place)
    INTO NEW.column_numbers, NEW.column_types
    FROM unnest(NEW.tenant_column || NEW.key_columns || NEW.watched_columns) WITH ORDINALITY c (name, place)
    LEFT JOIN pg_attribute t ON t.attrelid = NEW.relation AND t.attname = c.name AND NOT t.attisdropped;
    RETURN NEW;
END
$$;
UPDATE adopted SET relation = relation;
"""
ANNOUNCE = r"""
-- A transaction that has notified cannot be prepared. The trigger is deferred, so it runs within the statement that
-- ends the transaction, and does nothing where that prepares it: the change poller finds its records.
CREATE OR REPLACE FUNCTION @schema.announce_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_query() !~* 'prepare\s+transaction' THEN
        PERFORM pg_notify('taskbridge', '');
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION @schema.announce(source text, announces boolean DEFAULT true) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET client_min_messages = warning AS $$
DECLARE
    -- A name has 63 bytes at the most.
    name text := 'announce_' || left(source, 44) || '_' || left(md5(source), 8);
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS %I ON @schema.records', name);
    IF announces THEN
        EXECUTE format(
            'CREATE CONSTRAINT TRIGGER %I AFTER INSERT OR UPDATE ON @schema.records '
            'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.source = %L) '
            'EXECUTE FUNCTION @schema.announce_commit()',
            name, source
        );
    END IF;
END
$$;
"""


def upgrade() -> None:
    """Make the functions that number records, change what calls them, and drop the sequence."""
    connection = op.get_bind()
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    for functions in (REVISIONS, NUMBERS, COLUMNS, ANNOUNCE):
        connection.exec_driver_sql(functions.replace("@schema", schema).replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
