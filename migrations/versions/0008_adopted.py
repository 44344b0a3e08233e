"""Tables of the user's own as sources, and thin records of them, which have no document."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ADOPTED = """
CREATE TABLE adopted (
    source text COLLATE "C" NOT NULL,
    relation regclass NOT NULL,
    name text NOT NULL,
    tenant_column text NOT NULL,
    key_columns text[] NOT NULL,
    watched_columns text[],
    digest text NOT NULL,
    version bigint NOT NULL DEFAULT nextval('revisions'),
    adopted_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    backfill_after text[],
    backfill_columns text[],
    backfilled bigint NOT NULL DEFAULT 0,
    backfilled_at timestamptz,
    again_below bigint NOT NULL DEFAULT 0,
    CONSTRAINT pk_adopted PRIMARY KEY (source)
);
COMMENT ON TABLE adopted IS 'Tables that are sources: a trigger writes their records, and a batch reads their rows.';
COMMENT ON COLUMN adopted.relation IS 'The table, whatever it is called by now; a dump has its name.';
COMMENT ON COLUMN adopted.name IS 'What it was called when it was adopted, for messages.';
COMMENT ON COLUMN adopted.watched_columns IS 'A change of these makes a record; null: of any column.';
COMMENT ON COLUMN adopted.digest IS 'Of the statements that made the triggers: others are needed where it has changed.';
COMMENT ON COLUMN adopted.version IS 'Another with each adoption, by which a worker sees that it knows an older one.';
COMMENT ON COLUMN adopted.ended_at IS 'The triggers are gone; what was recorded is read from the table all the same.';
COMMENT ON COLUMN adopted.backfill_after IS 'The row up to which a backfill has come, by the unique index.';
COMMENT ON COLUMN adopted.backfill_columns IS 'The columns and types of this index: another one has another order.';
COMMENT ON COLUMN adopted.again_below IS 'A backfill writes records of smaller revisions again.';
"""

# The functions of 0006, which is released, with one more question about null documents, and with what is not allowed of
# a tenant and a key in a function of its own, since triggers of adopted tables ask before they write.
FUNCTIONS = r"""
-- Asked for each row that keeps its ids, so it is one expression: who may pass rights on has those of the owner.
CREATE OR REPLACE FUNCTION @schema.owns_records() RETURNS boolean LANGUAGE sql STABLE
RETURN has_table_privilege('@schema.records', 'TRIGGER WITH GRANT OPTION');
ALTER FUNCTION @schema.owns_records() RESET ALL;

-- The trigger that it drops may not be there.
ALTER FUNCTION @schema.announce(text, boolean) SET client_min_messages TO 'warning';

CREATE FUNCTION @schema.unfit(tenant text, key text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN tenant = '' THEN 'the tenant is empty: pass the key of the business that the work belongs to'
    WHEN char_length(tenant) > 200 OR tenant ~ @control THEN
        'the tenant ' || @schema.shown(tenant) || ' is not allowed: use 1 to 200 characters, none of them a control '
        'character'
    WHEN tenant ~ @space THEN 'the tenant ' || @schema.shown(tenant) || ' begins or ends with space: strip it'
    WHEN key = '' OR char_length(key) > 200 OR key ~ @control THEN
        'tenant ' || @schema.shown(tenant) || ': the key ' || @schema.shown(key) || ' is not allowed: use 1 to 200 '
        'characters, none of them a control character'
END;
COMMENT ON FUNCTION @schema.unfit IS 'Why a tenant, or a key, is not allowed; null: both are.';

CREATE OR REPLACE FUNCTION @schema.stamp_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
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
        -- The document of an adopted table's record is the row.
        IF NEW.document IS NOT NULL OR NOT EXISTS (SELECT FROM @schema.adopted a WHERE a.source = NEW.source) THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
                'tenant %s, record %s: the document is no JSON object: pass one',
                @schema.shown(NEW.tenant), @schema.shown(NEW.key));
        END IF;
    END IF;
    NEW.xid := pg_current_xact_id();
    NEW.revision := nextval('@schema.revisions');
    IF TG_OP = 'INSERT' THEN
        -- Its handler would be given what the table does not have.
        IF NEW.document IS NOT NULL AND NEW.tenant <> ''
            AND EXISTS (SELECT FROM @schema.adopted a WHERE a.source = NEW.source AND a.ended_at IS NULL)
        THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
                'the source %s is a table that was adopted, whose rows are its records: change the row, or choose '
                'another source', NEW.source);
        END IF;
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
        WHEN NEW.tenant <> '' OR NEW.reason IS NULL THEN @schema.unfit(NEW.tenant, NEW.key)
        ELSE @schema.unfit('-', NEW.key)
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem;
    END IF;
    RETURN NEW;
END
$$;
"""
# What Python's check_tenant and check_key refuse, as the server's regular expressions have it.
CONTROL = r"""'[\u0001-\u001F\u007F-\u009F\u2028\u2029]'"""
SPACES = r"\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000"
SPACE = f"'^[{SPACES}]|[{SPACES}]$'"


def upgrade() -> None:
    """Make the table, and let records of its sources be without a document."""
    connection = op.get_bind()
    connection.exec_driver_sql(ADOPTED)
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    functions = FUNCTIONS.replace("@control", CONTROL).replace("@space", SPACE)
    connection.exec_driver_sql(functions.replace("@schema", schema).replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
