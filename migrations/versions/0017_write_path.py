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
-- Parsed here once, so a writer's settings change nothing of it. It becomes a part of the expression that calls it.
CREATE FUNCTION @schema.is_allowed(source text, tenant text, key text, document jsonb, adopted text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN jsonb_typeof(document) = 'object'
    AND starts_with(adopted, @name || ',') AND strpos(adopted, ' ' || source || ',') = 0
    AND source ~ '^[a-z][a-z0-9_-]*$' AND char_length(source) <= 63
    AND tenant <> '' AND char_length(tenant) <= 200 AND tenant !~ '@control|^@space|@space$'
    AND key <> '' AND char_length(key) <= 200 AND key !~ '@control';
COMMENT ON FUNCTION @schema.is_allowed IS
    'Whether a record is one of those that are allowed, by what it says and by the list of adopted sources.';

CREATE FUNCTION @schema.refuse_record(
    source text, tenant text, key text, document jsonb, deleted boolean, reason text, is_new boolean, is_named boolean
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem text;
BEGIN
    -- The tables are asked in conditions of their own: an expression without a query costs little.
    IF tenant <> '' AND NOT deleted AND jsonb_typeof(document) IS DISTINCT FROM 'object' THEN
        -- The document of an adopted table's record is the row.
        IF document IS NOT NULL OR NOT EXISTS (SELECT FROM @schema.adopted a WHERE a.source = $1) THEN
            problem := format(
                'tenant %s, record %s: the document is no JSON object: pass one',
                @schema.shown(tenant), @schema.shown(key));
        END IF;
    ELSIF is_new AND tenant <> '' AND document IS NOT NULL THEN
        -- Its handler would be given what the table does not have.
        IF EXISTS (SELECT FROM @schema.adopted a WHERE a.source = $1 AND a.ended_at IS NULL) THEN
            problem := format(
                'the source %s is a table that was adopted, whose rows are its records: change the row, or choose '
                'another source', source);
        END IF;
    END IF;
    IF problem IS NULL AND is_named THEN
        problem := CASE
            WHEN tenant <> '' AND source !~ '^[a-z][a-z0-9_-]{0,62}$' THEN format(
                'the source %s is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter',
                @schema.shown(source))
            WHEN tenant <> '' OR reason IS NULL THEN @schema.unfit(tenant, key)
            ELSE @schema.unfit('-', key)
        END;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema.refuse_record IS
    'Refuse a record that is not allowed. It is called where `is_allowed` does not say so.';

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
    -- The setting spares `stamp_record` a query for each row. It begins with the schema, since there may be several.
    SELECT bool_and(c.system_identifier = s.system_identifier),
           set_config('taskbridge.adopted', concat(
               @name, ', ', (SELECT string_agg(a.source, ', ') FROM @schema.adopted a WHERE a.ended_at IS NULL), ','
           ), true)
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
    name = connection.exec_driver_sql("SELECT quote_literal(current_schema())").scalar_one()
    functions = FUNCTIONS.replace("@control", CONTROL).replace("@space", SPACE)
    functions = functions.replace("@schema", schema).replace("@name", name)
    connection.exec_driver_sql(functions.replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
