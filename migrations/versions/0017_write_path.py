"""What stamps a record costs its writer less: it sets no search path, and asks no table about a record that is allowed.

Postgres sets the search path of such a function anew for each row.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

FUNCTIONS = r"""
CREATE FUNCTION @schema.refuse_record(
    source text, tenant text, key text, document jsonb, deleted boolean, reason text, is_new boolean, is_named boolean
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text;
BEGIN
    problem := CASE
        -- The document of an adopted table's record is the row.
        WHEN tenant <> '' AND NOT deleted AND jsonb_typeof(document) IS DISTINCT FROM 'object' AND (
            document IS NOT NULL OR NOT EXISTS (SELECT FROM @schema.adopted a WHERE a.source = $1)
        ) THEN format(
            'tenant %s, record %s: the document is no JSON object: pass one', @schema.shown(tenant), @schema.shown(key))
        -- Its handler would be given what the table does not have.
        WHEN is_new AND tenant <> '' AND document IS NOT NULL AND EXISTS (
            SELECT FROM @schema.adopted a WHERE a.source = $1 AND a.ended_at IS NULL
        ) THEN format(
            'the source %s is a table that was adopted, whose rows are its records: change the row, or choose another '
            'source', source)
        WHEN NOT is_named THEN NULL
        WHEN tenant <> '' AND source !~ '^[a-z][a-z0-9_-]{0,62}$' THEN format(
            'the source %s is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter',
            @schema.shown(source))
        WHEN tenant <> '' OR reason IS NULL THEN @schema.unfit(tenant, key)
        ELSE @schema.unfit('-', key)
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema.refuse_record IS
    'Refuse a record that is not allowed. It is called for those of which their trigger does not know that they are.';

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
    -- Whether it may be one that is refused. Without the setting, as where somebody writes into a partition, it may.
    IF pg_catalog.texteq(NEW.tenant, '')
        OR pg_catalog.texteq(pg_catalog.jsonb_typeof(NEW.document), 'object') IS NOT TRUE
        OR pg_catalog.texteq(pg_catalog.current_setting('taskbridge.adopted', true), '') IS NOT FALSE
        OR pg_catalog.int4gt(pg_catalog.strpos(
            pg_catalog.current_setting('taskbridge.adopted', true),
            pg_catalog.textcat(pg_catalog.textcat(' ', NEW.source), ',')), 0)
        OR pg_catalog.textregexne(NEW.source, '^[a-z][a-z0-9_-]*$')
        OR pg_catalog.int4gt(pg_catalog.char_length(NEW.source), 63)
        OR pg_catalog.textregexeq(NEW.tenant, '@control|^@space|@space$')
        OR pg_catalog.int4gt(pg_catalog.char_length(NEW.tenant), 200)
        OR pg_catalog.texteq(NEW.key, '')
        OR pg_catalog.textregexeq(NEW.key, '@control')
        OR pg_catalog.int4gt(pg_catalog.char_length(NEW.key), 200)
    THEN
        PERFORM @schema.refuse_record(
            NEW.source, NEW.tenant, NEW.key, NEW.document, NEW.deleted, NEW.reason, OLD.id IS NULL,
            (pg_catalog.texteq(NEW.source, OLD.source) AND pg_catalog.texteq(NEW.tenant, OLD.tenant)
                AND pg_catalog.texteq(NEW.key, OLD.key)) IS NOT TRUE);
    END IF;
    NEW.xid := pg_catalog.pg_current_xact_id();
    NEW.revision := pg_catalog.nextval('@schema.revisions'::pg_catalog.regclass);
    NEW.id := COALESCE(OLD.id, NEW.revision);
    NEW.changed_at := CASE WHEN OLD.id IS NULL THEN NEW.changed_at ELSE pg_catalog.now() END;
    RETURN NEW;
END
$$;

CREATE OR REPLACE FUNCTION @schema.taskbridge_check_cluster() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fits boolean;
    adopted text;
BEGIN
    -- The setting spares `stamp_record` a query for each row. It is empty only where no statement has set it.
    SELECT bool_and(c.system_identifier = s.system_identifier),
           set_config('taskbridge.adopted', concat(
               ', ', (SELECT string_agg(a.source, ', ') FROM @schema.adopted a WHERE a.ended_at IS NULL), ','), true)
    INTO fits, adopted
    FROM @schema.taskbridge_cluster c, pg_control_system() s;
    IF fits IS NOT TRUE THEN
        RAISE EXCEPTION 'the database was restored into another cluster, where its transaction ids mean nothing'
            USING ERRCODE = 'TB001', HINT = 'Stop all workers and run: taskbridge rebase';
    END IF;
    RETURN NULL;
END
$$;
"""
# What Python's check_tenant and check_key refuse, as the server's regular expressions have it.
CONTROL = r"[\u0001-\u001F\u007F-\u009F\u2028\u2029]"
SPACE = r"[\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]"


def upgrade() -> None:
    """Make the function that refuses, and change what calls it."""
    connection = op.get_bind()
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    functions = FUNCTIONS.replace("@control", CONTROL).replace("@space", SPACE).replace("@schema", schema)
    connection.exec_driver_sql(functions.replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
