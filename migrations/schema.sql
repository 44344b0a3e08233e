-- The schema that the migrations make, for readers: pg_dump prints it, and a test compares it with a database.
-- `make docs` prints it anew after a migration was written. Nothing runs this file.

CREATE SCHEMA taskbridge;

CREATE FUNCTION taskbridge.announce(source text, announces boolean DEFAULT true) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET client_min_messages TO 'warning'
    AS $$
DECLARE
    -- A name has 63 bytes at the most.
    name text := 'announce_' || left(source, 44) || '_' || left(md5(source), 8);
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS %I ON taskbridge.records', name);
    IF announces THEN
        EXECUTE format(
            'CREATE CONSTRAINT TRIGGER %I AFTER INSERT OR UPDATE ON taskbridge.records '
            'DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.source = %L) '
            'EXECUTE FUNCTION taskbridge.announce_commit()',
            name, source
        );
    END IF;
END
$$;

COMMENT ON FUNCTION taskbridge.announce(source text, announces boolean) IS 'Let commits of a source wake the workers that listen, so that their records need not wait for the next poll. While this is on, commits of that source wait for each other; false turns it off.';

CREATE FUNCTION taskbridge.announce_commit() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF current_query() !~* 'prepare\s+transaction' THEN
        PERFORM pg_notify('taskbridge', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION taskbridge.error_kind(said text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
    SELECT left(
        regexp_replace(
            regexp_replace(
                regexp_replace(
                    btrim(regexp_replace(left(said, 2000), '\s+', ' ', 'g')),
                    '[a-z][a-z0-9+.-]*://[^\s''"<>]+', '<url>', 'gi'
                ),
                '\y([0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}|(0x)?[0-9a-f]{8,})\y', '<id>', 'gi'
            ),
            '\d+\.\d+|\d{4,}|(?<=[-_#/=:])\d+', '<n>', 'g'
        ),
        300
    )
$$;

COMMENT ON FUNCTION taskbridge.error_kind(said text) IS 'An error without what differs from record to record: white space, addresses, ids and numbers.';

CREATE FUNCTION taskbridge.is_allowed(source text, tenant text, key text, document jsonb, adopted text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((jsonb_typeof(document) = 'object'::text) AND starts_with(adopted, ('taskbridge'::text || ','::text)) AND (strpos(adopted, ((' '::text || source) || ','::text)) = 0) AND (source ~ '^[a-z][a-z0-9_-]*$'::text) AND (char_length(source) <= 63) AND (tenant <> ''::text) AND (char_length(tenant) <= 200) AND (tenant !~ '[\u0001-\u001F\u007F-\u009F\u2028\u2029]|^[\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]|[\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]$'::text) AND (key <> ''::text) AND (char_length(key) <= 200) AND (key !~ '[\u0001-\u001F\u007F-\u009F\u2028\u2029]'::text));

COMMENT ON FUNCTION taskbridge.is_allowed(source text, tenant text, key text, document jsonb, adopted text) IS 'Whether a record is one of those that are allowed, by what it says and by the list of adopted sources.';

CREATE FUNCTION taskbridge.is_handled(xid xid8, id bigint, snapshot pg_snapshot, target pg_snapshot, at_xid xid8, at_id bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (pg_visible_in_snapshot(xid, snapshot) OR COALESCE((pg_visible_in_snapshot(xid, target) AND (ROW(xid, id) <= ROW(at_xid, at_id))), false));

COMMENT ON FUNCTION taskbridge.is_handled(xid xid8, id bigint, snapshot pg_snapshot, target pg_snapshot, at_xid xid8, at_id bigint) IS 'Whether a record lies behind a cursor: visible in its snapshot, or passed in the sweep that is on.';

CREATE FUNCTION taskbridge.keep_runs(days integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10ms'
    SET client_min_messages TO 'warning'
    AS $_$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    oldest date := today - keep_runs.days;
    day date;
    partition name;
BEGIN
    IF NOT pg_try_advisory_xact_lock('taskbridge.runs'::regclass::oid::bigint) THEN
        RETURN; -- another worker does it
    END IF;
    DELETE FROM taskbridge.runs_other o WHERE o.ended_at < oldest::timestamp AT TIME ZONE 'UTC';
    DELETE FROM taskbridge.run_minutes m WHERE m.minute < oldest::timestamp AT TIME ZONE 'UTC';
    FOR day IN SELECT today + ahead FROM generate_series(0, 2) ahead LOOP
        partition := 'runs_' || to_char(day, 'YYYYMMDD');
        -- A day that has rows elsewhere stays there.
        IF to_regclass(format('taskbridge.%I', partition)) IS NULL AND NOT EXISTS (
            SELECT FROM taskbridge.runs_other o
            WHERE o.ended_at >= day::timestamp AT TIME ZONE 'UTC'
              AND o.ended_at < (day + 1)::timestamp AT TIME ZONE 'UTC'
        ) THEN
            BEGIN
                EXECUTE format('CREATE TABLE taskbridge.%I (LIKE taskbridge.runs INCLUDING ALL)', partition);
                EXECUTE format(
                    'ALTER TABLE taskbridge.runs ATTACH PARTITION taskbridge.%I FOR VALUES FROM (%L) TO (%L)',
                    partition,
                    day::timestamp AT TIME ZONE 'UTC',
                    (day + 1)::timestamp AT TIME ZONE 'UTC'
                );
            EXCEPTION WHEN lock_not_available THEN
                EXIT; -- the next call may do it
            END;
        END IF;
    END LOOP;
    FOR partition IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'taskbridge.runs'::regclass AND c.relname ~ '^runs_[0-9]{8}$'
          AND to_date(substr(c.relname, 6), 'YYYYMMDD') < oldest
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE taskbridge.%I', partition);
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
    END LOOP;
END
$_$;

COMMENT ON FUNCTION taskbridge.keep_runs(days integer) IS 'Make partitions of the run history for the next days, and drop what is older than so many days.';

CREATE FUNCTION taskbridge.last_id(source text) RETURNS bigint
    LANGUAGE plpgsql
    AS $_$
BEGIN
    RETURN (
        SELECT r.id FROM taskbridge.records r
        WHERE r.source OPERATOR(pg_catalog.=) $1 AND r.xid OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id()
          AND r.id OPERATOR(pg_catalog.>) 0
        ORDER BY r.id DESC
        LIMIT 1
    );
END
$_$;

COMMENT ON FUNCTION taskbridge.last_id(source text) IS 'The highest id of a record of this source and transaction; null: it has none.';

CREATE FUNCTION taskbridge.muted_tenant(source text) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    muted text := current_setting('taskbridge.muted', true);
    prefix text := source || ':';
    run text := substr(muted, length(prefix) + 1);
    name text := split_part(run, ':', 1);
BEGIN
    IF NOT starts_with(muted, prefix) THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT c.tenant FROM taskbridge.sync_cursors c
        WHERE c.pipeline = name AND c.tenant = substr(run, length(name) + 2)
          AND c.owner = current_setting('taskbridge.batch', true)
    );
END
$$;

COMMENT ON FUNCTION taskbridge.muted_tenant(source text) IS 'The tenant whose batch this transaction handles, if its changes of the source make no records; null: there is none.';

CREATE FUNCTION taskbridge.next_id(source text, room bigint DEFAULT 0) RETURNS bigint
    LANGUAGE sql
    RETURN ((split_part(set_config('taskbridge.last_id'::text, ((((room + GREATEST((((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric))::bigint << 21), (1 + CASE WHEN ((split_part(current_setting('taskbridge.last_id'::text, true), ' '::text, 2) = source) AND (((split_part(current_setting('taskbridge.last_id'::text, true), ' '::text, 1))::numeric >= (0)::numeric) AND ((split_part(current_setting('taskbridge.last_id'::text, true), ' '::text, 1))::numeric <= '9000000000000000000'::numeric))) THEN (split_part(current_setting('taskbridge.last_id'::text, true), ' '::text, 1))::bigint ELSE taskbridge.last_id(source) END))))::text || ' '::text) || source), true), ' '::text, 1))::bigint - room);

COMMENT ON FUNCTION taskbridge.next_id(source text, room bigint) IS 'An id for a record of a source, above those that this transaction gave before; the next `room` ids are free too.';

CREATE FUNCTION taskbridge.next_revision(former bigint) RETURNS bigint
    LANGUAGE sql
    RETURN GREATEST(((EXTRACT(epoch FROM clock_timestamp()) * (1000000)::numeric))::bigint, (former + 1));

COMMENT ON FUNCTION taskbridge.next_revision(former bigint) IS 'The revision of a record that changes, above its former one; null: it is new.';

CREATE FUNCTION taskbridge.number_columns() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    NEW.numbered := NEW.relation;
    SELECT array_agg(t.attnum ORDER BY c.place), array_agg(t.atttypid ORDER BY c.place)
    INTO NEW.column_numbers, NEW.column_types
    FROM unnest(NEW.tenant_column || NEW.key_columns || NEW.watched_columns) WITH ORDINALITY c (name, place)
    LEFT JOIN pg_attribute t ON t.attrelid = NEW.relation AND t.attname = c.name AND NOT t.attisdropped;
    RETURN NEW;
END
$$;

CREATE FUNCTION taskbridge.owns_records() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN has_table_privilege('taskbridge.records'::text, 'TRIGGER WITH GRANT OPTION'::text);

COMMENT ON FUNCTION taskbridge.owns_records() IS 'Whether the role has the rights of the owner of the records.';

CREATE FUNCTION taskbridge.record(source text, tenant text, key text, document jsonb) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
    INSERT INTO taskbridge.records AS r (source, tenant, key, document) VALUES ($1, $2, $3, $4)
    ON CONFLICT ON CONSTRAINT pk_records DO UPDATE SET document = excluded.document, deleted = false, traceparent = NULL
    WHERE r.deleted OR r.document IS DISTINCT FROM excluded.document;
    RETURN FOUND;
END
$_$;

COMMENT ON FUNCTION taskbridge.record(source text, tenant text, key text, document jsonb) IS 'Write or update one record of a source; returns whether anything changed.';

CREATE FUNCTION taskbridge.refuse_record(source text, tenant text, key text, document jsonb, deleted boolean, reason text, is_new boolean, is_named boolean) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    problem text;
BEGIN
    -- The tables are asked in conditions of their own: an expression without a query costs little.
    IF tenant <> '' AND NOT deleted AND jsonb_typeof(document) IS DISTINCT FROM 'object' THEN
        -- The document of an adopted table's record is the row.
        IF document IS NOT NULL OR NOT EXISTS (SELECT FROM taskbridge.adopted a WHERE a.source = $1) THEN
            problem := format(
                'tenant %s, record %s: the document is no JSON object: pass one',
                taskbridge.shown(tenant), taskbridge.shown(key));
        END IF;
    ELSIF is_new AND tenant <> '' AND document IS NOT NULL THEN
        -- Its handler would be given what the table does not have.
        IF EXISTS (SELECT FROM taskbridge.adopted a WHERE a.source = $1 AND a.ended_at IS NULL) THEN
            problem := format(
                'the source %s is a table that was adopted, whose rows are its records: change the row, or choose '
                'another source', source);
        END IF;
    END IF;
    IF problem IS NULL AND is_named THEN
        problem := CASE
            WHEN tenant <> '' AND source !~ '^[a-z][a-z0-9_-]{0,62}$' THEN format(
                'the source %s is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter',
                taskbridge.shown(source))
            WHEN tenant <> '' OR reason IS NULL THEN taskbridge.unfit(tenant, key)
            ELSE taskbridge.unfit('-', key)
        END;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = problem;
    END IF;
END
$_$;

COMMENT ON FUNCTION taskbridge.refuse_record(source text, tenant text, key text, document jsonb, deleted boolean, reason text, is_new boolean, is_named boolean) IS 'Refuse a record that is not allowed. It is called where `is_allowed` does not say so.';

CREATE FUNCTION taskbridge.shown(text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN quote_literal(regexp_replace("left"($1, 20), '[\u0001-\u001F\u007F-\u009F\u2028\u2029]'::text, '?'::text, 'g'::text));

CREATE FUNCTION taskbridge.stamp_record() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    AS $$
BEGIN
    -- Nobody reads what no criterion matched.
    IF pg_catalog.texteq(OLD.tenant, '') AND pg_catalog.texteq(NEW.tenant, '') THEN
        NEW.xid := OLD.xid;
        NEW.id := OLD.id;
        NEW.revision := OLD.revision;
        RETURN NEW;
    END IF;
    -- The list guards against a mistake, and not against a writer who sets it: who may write records may change any.
    IF taskbridge.is_allowed(
        NEW.source, NEW.tenant, NEW.key, NEW.document, pg_catalog.current_setting('taskbridge.adopted', true)
    ) IS NOT TRUE THEN
        PERFORM taskbridge.refuse_record(
            NEW.source, NEW.tenant, NEW.key, NEW.document, NEW.deleted, NEW.reason, OLD.id IS NULL,
            (pg_catalog.texteq(NEW.source, OLD.source) AND pg_catalog.texteq(NEW.tenant, OLD.tenant)
                AND pg_catalog.texteq(NEW.key, OLD.key)) IS NOT TRUE);
    END IF;
    NEW.xid := pg_catalog.pg_current_xact_id();
    NEW.id := taskbridge.next_id(NEW.source);
    NEW.revision := taskbridge.next_revision(OLD.revision);
    NEW.changed_at := CASE WHEN OLD.id IS NULL THEN NEW.changed_at ELSE pg_catalog.now() END;
    RETURN NEW;
END
$$;

CREATE FUNCTION taskbridge.taskbridge_check_cluster() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    fits boolean;
    adopted text;
BEGIN
    -- The setting spares `stamp_record` a query for each row. It begins with the schema, since there may be several.
    SELECT bool_and(c.system_identifier = s.system_identifier),
           set_config('taskbridge.adopted', concat(
               'taskbridge', ', ', (SELECT string_agg(a.source, ', ') FROM taskbridge.adopted a WHERE a.ended_at IS NULL), ','
           ), true)
    INTO fits, adopted
    FROM taskbridge.taskbridge_cluster c, pg_control_system() s;
    IF fits IS NOT TRUE THEN
        RAISE EXCEPTION 'the database was restored into another cluster, where its transaction ids mean nothing'
            USING ERRCODE = 'TB001', HINT = 'Stop all workers and producers, and run: taskbridge migrate --rebase';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION taskbridge.unfit(tenant text, key text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (tenant = ''::text) THEN 'the tenant is empty: pass the key of the business that the work belongs to'::text WHEN ((char_length(tenant) > 200) OR (tenant ~ '[\u0001-\u001F\u007F-\u009F\u2028\u2029]'::text)) THEN (('the tenant '::text || taskbridge.shown(tenant)) || ' is not allowed: use 1 to 200 characters, none of them a control character'::text) WHEN (tenant ~ '^[\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]|[\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]$'::text) THEN (('the tenant '::text || taskbridge.shown(tenant)) || ' begins or ends with space: strip it'::text) WHEN ((key = ''::text) OR (char_length(key) > 200) OR (key ~ '[\u0001-\u001F\u007F-\u009F\u2028\u2029]'::text)) THEN (((('tenant '::text || taskbridge.shown(tenant)) || ': the key '::text) || taskbridge.shown(key)) || ' is not allowed: use 1 to 200 characters, none of them a control character'::text) ELSE NULL::text END;

COMMENT ON FUNCTION taskbridge.unfit(tenant text, key text) IS 'Why a tenant, or a key, is not allowed; null: both are.';

CREATE TABLE taskbridge.adopted (
    source text NOT NULL COLLATE "C",
    relation regclass NOT NULL,
    name text NOT NULL,
    tenant_column text NOT NULL,
    key_columns text[] NOT NULL,
    watched_columns text[],
    digest text NOT NULL,
    version bigint DEFAULT taskbridge.next_revision(NULL::bigint) NOT NULL,
    adopted_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone,
    backfill_after text[],
    backfill_columns text[],
    backfilled bigint DEFAULT 0 NOT NULL,
    backfilled_at timestamp with time zone,
    again_below bigint DEFAULT 0 NOT NULL,
    column_numbers smallint[],
    numbered oid,
    backfill_of text DEFAULT 'rows'::text NOT NULL,
    from_now_on boolean DEFAULT false NOT NULL,
    column_types oid[],
    column_kinds text[],
    CONSTRAINT ck_adopted_backfill_of CHECK ((backfill_of = ANY (ARRAY['rows'::text, 'records'::text])))
);

COMMENT ON TABLE taskbridge.adopted IS 'Tables that are sources: a trigger writes their records, and a batch reads their rows.';
COMMENT ON COLUMN taskbridge.adopted.relation IS 'The table, whatever it is called by now; a dump has its name.';
COMMENT ON COLUMN taskbridge.adopted.name IS 'What it was called when it was adopted, for messages.';
COMMENT ON COLUMN taskbridge.adopted.watched_columns IS 'A change of these makes a record; null: of any column.';
COMMENT ON COLUMN taskbridge.adopted.digest IS 'Of the statements that made the triggers: others are needed where it has changed.';
COMMENT ON COLUMN taskbridge.adopted.version IS 'Another with each adoption, by which a worker sees that it knows an older one.';
COMMENT ON COLUMN taskbridge.adopted.ended_at IS 'The triggers are gone; what was recorded is read from the table all the same.';
COMMENT ON COLUMN taskbridge.adopted.backfill_after IS 'The row, by the unique index, or the record, by tenant and key, up to which the phase has come; null: to no row.';
COMMENT ON COLUMN taskbridge.adopted.backfill_columns IS 'The columns and types of the index by which rows are taken: of another index the place says nothing.';
COMMENT ON COLUMN taskbridge.adopted.backfilled IS 'How many rows the backfill has looked at.';
COMMENT ON COLUMN taskbridge.adopted.backfilled_at IS 'When the backfill was done.';
COMMENT ON COLUMN taskbridge.adopted.again_below IS 'A backfill writes records again that this transaction or an earlier one wrote.';
COMMENT ON COLUMN taskbridge.adopted.column_numbers IS 'The columns of tenant and key, and those watched, whatever they are called by now.';
COMMENT ON COLUMN taskbridge.adopted.numbered IS 'The table whose numbers these are: after a dump it is another, and the names count.';
COMMENT ON COLUMN taskbridge.adopted.backfill_of IS 'The phase: "rows" get their records; then, where changes may have been missed, "records" may have lost their row.';
COMMENT ON COLUMN taskbridge.adopted.from_now_on IS 'Somebody chose that rows which were there before get no backfill, so that nobody is reminded of it.';
COMMENT ON COLUMN taskbridge.adopted.column_types IS 'The types of these columns when the table was adopted.';
COMMENT ON COLUMN taskbridge.adopted.column_kinds IS 'How the values of tenant and key are written as text: where that has changed, records have other keys.';

CREATE TABLE taskbridge.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    who text NOT NULL,
    action text NOT NULL,
    pipeline text COLLATE "C",
    tenant text COLLATE "C",
    key text COLLATE "C",
    detail text
);

COMMENT ON TABLE taskbridge.audit IS 'What people did, one row for each action.';
COMMENT ON COLUMN taskbridge.audit.who IS 'The user of the operating system, or of the page, that did it.';
COMMENT ON COLUMN taskbridge.audit.tenant IS 'Null: the action was about the whole pipeline.';
COMMENT ON COLUMN taskbridge.audit.key IS 'The record''s key; null: the action was about no single record.';
COMMENT ON COLUMN taskbridge.audit.detail IS 'What was given with the action, such as the reason of a pause.';

ALTER TABLE taskbridge.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME taskbridge.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE taskbridge.deliveries (
    id bigint NOT NULL,
    pipeline text NOT NULL COLLATE "C",
    tenant text NOT NULL COLLATE "C",
    external_id text NOT NULL COLLATE "C",
    revision bigint NOT NULL,
    delivered_at timestamp with time zone DEFAULT now() NOT NULL,
    token text NOT NULL COLLATE "C"
);

COMMENT ON TABLE taskbridge.deliveries IS 'The journal: one row per record that it took.';

ALTER TABLE taskbridge.deliveries ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME taskbridge.deliveries_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE taskbridge.messages (
    source text NOT NULL COLLATE "C",
    key text NOT NULL COLLATE "C"
);

COMMENT ON TABLE taskbridge.messages IS 'Ids of the messages that were recorded, so that each is once in its source, whatever tenant criteria give it.';

CREATE TABLE taskbridge.pauses (
    pipeline text NOT NULL COLLATE "C",
    tenant text DEFAULT ''::text NOT NULL COLLATE "C",
    reason text,
    paused_at timestamp with time zone DEFAULT now() NOT NULL,
    paused_by text
);

COMMENT ON TABLE taskbridge.pauses IS 'Tenants that an operator holds; with an empty tenant, the whole pipeline.';
COMMENT ON COLUMN taskbridge.pauses.paused_by IS 'Who paused it; null: it was not written down.';

CREATE TABLE taskbridge.pipelines (
    pipeline text NOT NULL COLLATE "C",
    source text NOT NULL COLLATE "C",
    start pg_snapshot DEFAULT '1:1:'::pg_snapshot NOT NULL,
    first_seen_at timestamp with time zone DEFAULT now() NOT NULL,
    failed boolean DEFAULT false NOT NULL,
    succeeded_at timestamp with time zone
);

COMMENT ON TABLE taskbridge.pipelines IS 'The pipelines that were seen: what each reads, and the snapshot at which its tenants'' cursors begin.';
COMMENT ON COLUMN taskbridge.pipelines.failed IS 'Something failed since succeeded_at: the next success is noted there.';
COMMENT ON COLUMN taskbridge.pipelines.succeeded_at IS 'When the handler took records for the first time after something failed.';

CREATE TABLE taskbridge.quarantine (
    pipeline text NOT NULL COLLATE "C",
    tenant text NOT NULL COLLATE "C",
    external_id text NOT NULL COLLATE "C",
    revision bigint NOT NULL,
    reason text NOT NULL,
    attempts integer DEFAULT 1 NOT NULL,
    quarantined_at timestamp with time zone DEFAULT now() NOT NULL,
    cause text DEFAULT 'failed'::text NOT NULL,
    failing_since timestamp with time zone,
    retry_at timestamp with time zone,
    discarded_at timestamp with time zone,
    CONSTRAINT ck_quarantine_cause CHECK ((cause = ANY (ARRAY['failed'::text, 'rejected'::text])))
);

COMMENT ON TABLE taskbridge.quarantine IS 'Records that cannot be handled, kept apart so that the rest go on.';
COMMENT ON COLUMN taskbridge.quarantine.revision IS 'The record as it was; once it changes in the source, this row means nothing.';
COMMENT ON COLUMN taskbridge.quarantine.retry_at IS 'Somebody asked for another try; the tenant''s next sweep takes it.';

CREATE TABLE taskbridge.received (
    source text NOT NULL COLLATE "C",
    delivery text NOT NULL COLLATE "C",
    received_at timestamp with time zone DEFAULT now() NOT NULL
);

COMMENT ON TABLE taskbridge.received IS 'Deliveries of webhooks that were taken, by their sender''s id; kept for 30 days.';

CREATE TABLE taskbridge.records (
    id bigint NOT NULL,
    source text NOT NULL COLLATE "C",
    tenant text DEFAULT ''::text NOT NULL COLLATE "C",
    key text NOT NULL COLLATE "C",
    revision bigint NOT NULL,
    xid xid8 NOT NULL,
    document jsonb,
    deleted boolean DEFAULT false NOT NULL,
    delay_ms bigint,
    criterion text,
    reason text,
    recorded_at timestamp with time zone DEFAULT now() NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    discarded_at timestamp with time zone,
    traceparent text COLLATE "C",
    CONSTRAINT ck_records_id CHECK ((id > 0)),
    CONSTRAINT ck_records_matched CHECK (((tenant = ''::text) = (reason IS NOT NULL))),
    CONSTRAINT ck_records_traceparent CHECK ((traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'::text))
);

COMMENT ON TABLE taskbridge.records IS 'The log: one row per source, tenant and key. Without a tenant: no criterion matched, and the reason.';
COMMENT ON COLUMN taskbridge.records.id IS 'Rows of one transaction are read in this order; another with each change of the row.';
COMMENT ON COLUMN taskbridge.records.revision IS 'Another with each change of the row, and never one again; a trigger sets it.';
COMMENT ON COLUMN taskbridge.records.xid IS 'The transaction that wrote the row last; a trigger sets it.';
COMMENT ON COLUMN taskbridge.records.document IS 'Null: the row is in the table that was adopted as the source.';
COMMENT ON COLUMN taskbridge.records.deleted IS 'The row is gone from the adopted table.';
COMMENT ON COLUMN taskbridge.records.delay_ms IS 'Least time since the tenant''s last run, for pipelines with delays; null: the smallest that the pipeline has.';
COMMENT ON COLUMN taskbridge.records.changed_at IS 'When the row was written last; a trigger sets it.';
COMMENT ON COLUMN taskbridge.records.discarded_at IS 'No criterion matched, and somebody gave the record up.';
COMMENT ON COLUMN taskbridge.records.traceparent IS 'The span that wrote the row last, as W3C''s traceparent; null: it was not traced.';

CREATE TABLE taskbridge.sync_cursors (
    pipeline text NOT NULL COLLATE "C",
    tenant text NOT NULL COLLATE "C",
    snapshot pg_snapshot DEFAULT '1:1:'::pg_snapshot NOT NULL,
    target pg_snapshot,
    at_xid xid8,
    at_id bigint,
    owner text COLLATE "C",
    sweeps bigint DEFAULT 0 NOT NULL,
    runs bigint DEFAULT 0 NOT NULL,
    events bigint DEFAULT 0 NOT NULL,
    records bigint DEFAULT 0 NOT NULL,
    burst_runs bigint DEFAULT 0 NOT NULL,
    burst_events bigint DEFAULT 0 NOT NULL,
    first_event_ms integer,
    last_run_at timestamp with time zone,
    failures integer DEFAULT 0 NOT NULL,
    last_error text,
    failed_at timestamp with time zone,
    last_taken_at timestamp with time zone,
    batch_limit integer,
    suspects integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    failing_since timestamp with time zone,
    bursts bigint DEFAULT 0 NOT NULL,
    failed_runs bigint DEFAULT 0 NOT NULL,
    first_event_ms_sum bigint DEFAULT 0 NOT NULL,
    first_event_counts integer[] DEFAULT '{}'::integer[] NOT NULL,
    deaths integer DEFAULT 0 NOT NULL,
    suspect_revision bigint,
    outages integer DEFAULT 0 NOT NULL,
    looked pg_snapshot,
    burst text COLLATE "C",
    found_bursts bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE taskbridge.sync_cursors IS 'How far each tenant''s records have been handled: all that is visible in snapshot, and of those visible in target the ones up to (at_xid, at_id).';
COMMENT ON COLUMN taskbridge.sync_cursors.last_taken_at IS 'Start of the last run that took records; last_run_at is that of the last run.';
COMMENT ON COLUMN taskbridge.sync_cursors.batch_limit IS 'Most records of the next batch; null: the pipeline''s batch size.';
COMMENT ON COLUMN taskbridge.sync_cursors.suspects IS 'Of so many next records one cannot be handled; 0: none is known.';
COMMENT ON COLUMN taskbridge.sync_cursors.attempts IS 'How often in a row a batch of the present size failed.';
COMMENT ON COLUMN taskbridge.sync_cursors.failing_since IS 'First failure of a batch that held the suspects.';
COMMENT ON COLUMN taskbridge.sync_cursors.first_event_counts IS 'How many bursts had their first event delivered in each bucket; see taskbridge/common/histogram.py.';
COMMENT ON COLUMN taskbridge.sync_cursors.deaths IS 'How often, beside the attempts, a run died that had the suspect alone.';
COMMENT ON COLUMN taskbridge.sync_cursors.suspect_revision IS 'The one suspect that attempts and deaths are counted of.';
COMMENT ON COLUMN taskbridge.sync_cursors.outages IS 'How many of the attempts with the suspect alone said "downstream".';
COMMENT ON COLUMN taskbridge.sync_cursors.looked IS 'What was visible when the last run claimed the cursor: that run reads it.';
COMMENT ON COLUMN taskbridge.sync_cursors.burst IS 'The last burst: the token of its first run.';
COMMENT ON COLUMN taskbridge.sync_cursors.found_bursts IS 'Bursts beside `bursts` that the change poller began: no event had come when their first run claimed the cursor.';

CREATE VIEW taskbridge.record_states AS
 SELECT p.pipeline,
    r.tenant,
    r.key AS external_id,
        CASE
            WHEN (q.retry_at IS NOT NULL) THEN 'pending'::text
            WHEN (q.discarded_at IS NOT NULL) THEN 'discarded'::text
            WHEN (q.external_id IS NOT NULL) THEN 'quarantined'::text
            WHEN taskbridge.is_handled(r.xid, r.id, COALESCE(c.snapshot, p.start), c.target, c.at_xid, c.at_id) THEN 'handled'::text
            ELSE 'pending'::text
        END AS state
   FROM (((( SELECT pipelines.pipeline,
            pipelines.source,
            pipelines.start
           FROM taskbridge.pipelines
        UNION ALL
         SELECT 'invoices'::text,
            'invoices'::text,
            '1:1:'::pg_snapshot AS pg_snapshot
          WHERE (NOT (EXISTS ( SELECT
                   FROM taskbridge.pipelines
                  WHERE (pipelines.source = 'invoices'::text))))) p
     JOIN taskbridge.records r ON (((r.source = p.source) AND (r.tenant <> ''::text))))
     LEFT JOIN taskbridge.sync_cursors c ON (((c.pipeline = p.pipeline) AND (c.tenant = r.tenant))))
     LEFT JOIN taskbridge.quarantine q ON (((q.pipeline = p.pipeline) AND (q.tenant = r.tenant) AND (q.external_id = r.key) AND (q.revision = r.revision))));

COMMENT ON VIEW taskbridge.record_states IS 'Per pipeline and record: pending, handled (also: older than the pipeline''s start), quarantined, or discarded.';

CREATE TABLE taskbridge.record_versions (
    source text NOT NULL COLLATE "C",
    tenant text NOT NULL COLLATE "C",
    key text NOT NULL COLLATE "C",
    version numeric NOT NULL
);

COMMENT ON TABLE taskbridge.record_versions IS 'The newest version of a record that a webhook brought; it goes with the record.';

CREATE TABLE taskbridge.run_minutes (
    minute timestamp with time zone NOT NULL,
    runs bigint NOT NULL,
    failed bigint NOT NULL,
    events bigint NOT NULL,
    bursts bigint NOT NULL,
    records bigint NOT NULL,
    rejected bigint NOT NULL,
    run_ms bigint NOT NULL,
    first_event_ms_sum bigint NOT NULL,
    pipeline text NOT NULL COLLATE "C",
    first_event_counts integer[] NOT NULL
);

COMMENT ON TABLE taskbridge.run_minutes IS 'Sums of the run history for each minute in which runs ended.';
COMMENT ON COLUMN taskbridge.run_minutes.run_ms IS 'How long the runs took together, in milliseconds.';
COMMENT ON COLUMN taskbridge.run_minutes.first_event_counts IS 'How many bursts had their first event delivered in each bucket; see taskbridge/common/histogram.py.';

CREATE TABLE taskbridge.runs (
    began_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    at_id bigint,
    at_xid xid8,
    events integer NOT NULL,
    burst_run integer NOT NULL,
    records integer NOT NULL,
    rejected integer NOT NULL,
    first_event_ms integer,
    pipeline text NOT NULL COLLATE "C",
    tenant text NOT NULL COLLATE "C",
    token text NOT NULL COLLATE "C",
    reason text NOT NULL,
    worker text NOT NULL,
    outcome text NOT NULL,
    snapshot pg_snapshot,
    target pg_snapshot,
    error text
)
PARTITION BY RANGE (ended_at);

COMMENT ON TABLE taskbridge.runs IS 'The run history: a row for each run that took records, had events or failed, in a partition for each day (UTC).';
COMMENT ON COLUMN taskbridge.runs.ended_at IS 'When it advanced last, or failed. That a run died is written down by the one after it.';
COMMENT ON COLUMN taskbridge.runs.events IS 'Events since the run before it began. Those of a run that died after the first of its burst are on the cursor alone.';
COMMENT ON COLUMN taskbridge.runs.burst_run IS 'Which run of its burst it was; 0: what a run did after its first row.';
COMMENT ON COLUMN taskbridge.runs.rejected IS 'Records that went to quarantine, of those that it took.';
COMMENT ON COLUMN taskbridge.runs.first_event_ms IS 'Milliseconds from the burst''s first event to the first delivery.';
COMMENT ON COLUMN taskbridge.runs.reason IS 'Why it began: event (the first of a burst), burst (more events), record (records without an event), more (records were left, or a wait was over), retry (a run failed), died (the run before did not end), probe (of the circuit), unknown (it did not end, and was replaced).';
COMMENT ON COLUMN taskbridge.runs.outcome IS 'handled, failed, or waited: it took no record, since it was told to wait, paused, or handed back.';
COMMENT ON COLUMN taskbridge.runs.snapshot IS 'Where the cursor stood when it ended: this, target, at_xid and at_id as in sync_cursors. Null: before a rebase.';

CREATE TABLE taskbridge.runs_other (
    began_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    at_id bigint,
    at_xid xid8,
    events integer NOT NULL,
    burst_run integer NOT NULL,
    records integer NOT NULL,
    rejected integer NOT NULL,
    first_event_ms integer,
    pipeline text NOT NULL COLLATE "C",
    tenant text NOT NULL COLLATE "C",
    token text NOT NULL COLLATE "C",
    reason text NOT NULL,
    worker text NOT NULL,
    outcome text NOT NULL,
    snapshot pg_snapshot,
    target pg_snapshot,
    error text
);

COMMENT ON TABLE taskbridge.runs_other IS 'Runs of days that have no partition, as where no worker could make it.';

CREATE TABLE taskbridge.tails (
    pipeline text NOT NULL COLLATE "C",
    kind text NOT NULL COLLATE "C",
    snapshot pg_snapshot NOT NULL,
    stored_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_tails_kind CHECK ((kind = ANY (ARRAY['tail'::text, 'base'::text])))
)
WITH (fillfactor='50');

COMMENT ON TABLE taskbridge.tails IS 'How far the change poller (kind tail) and the reconciler (kind base) of a pipeline have read. Every tenant with a record that the first snapshot sees was reminded, or had a run that read it. What the second sees, every cursor has handled.';
COMMENT ON COLUMN taskbridge.tails.stored_at IS 'When a worker last stored the snapshot; the poller stores one every few seconds even if nothing is new.';

CREATE TABLE taskbridge.taskbridge_cluster (
    system_identifier bigint NOT NULL
);

ALTER TABLE ONLY taskbridge.taskbridge_cluster REPLICA IDENTITY FULL;

COMMENT ON TABLE taskbridge.taskbridge_cluster IS 'The cluster whose transaction ids the records and cursors hold.';

ALTER TABLE ONLY taskbridge.runs ATTACH PARTITION taskbridge.runs_other DEFAULT;

ALTER TABLE ONLY taskbridge.adopted
    ADD CONSTRAINT pk_adopted PRIMARY KEY (source);

ALTER TABLE ONLY taskbridge.audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id);

ALTER TABLE ONLY taskbridge.deliveries
    ADD CONSTRAINT pk_deliveries PRIMARY KEY (id);

ALTER TABLE ONLY taskbridge.messages
    ADD CONSTRAINT pk_messages PRIMARY KEY (source, key);

ALTER TABLE ONLY taskbridge.pauses
    ADD CONSTRAINT pk_pauses PRIMARY KEY (pipeline, tenant);

ALTER TABLE ONLY taskbridge.pipelines
    ADD CONSTRAINT pk_pipelines PRIMARY KEY (pipeline);

ALTER TABLE ONLY taskbridge.quarantine
    ADD CONSTRAINT pk_quarantine PRIMARY KEY (pipeline, tenant, external_id);

ALTER TABLE ONLY taskbridge.received
    ADD CONSTRAINT pk_received PRIMARY KEY (source, delivery);

ALTER TABLE ONLY taskbridge.record_versions
    ADD CONSTRAINT pk_record_versions PRIMARY KEY (source, tenant, key);

ALTER TABLE ONLY taskbridge.records
    ADD CONSTRAINT pk_records PRIMARY KEY (source, tenant, key);

ALTER TABLE ONLY taskbridge.run_minutes
    ADD CONSTRAINT pk_run_minutes PRIMARY KEY (pipeline, minute);

ALTER TABLE ONLY taskbridge.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (pipeline, tenant, token, ended_at);

ALTER TABLE ONLY taskbridge.sync_cursors
    ADD CONSTRAINT pk_sync_cursors PRIMARY KEY (pipeline, tenant);

ALTER TABLE ONLY taskbridge.tails
    ADD CONSTRAINT pk_tails PRIMARY KEY (pipeline, kind);

ALTER TABLE ONLY taskbridge.runs_other
    ADD CONSTRAINT runs_other_pkey PRIMARY KEY (pipeline, tenant, token, ended_at);

CREATE INDEX ix_deliveries_pipeline_tenant_external_id ON taskbridge.deliveries USING btree (pipeline, tenant, external_id);
CREATE INDEX ix_quarantine_failed ON taskbridge.quarantine USING btree (pipeline, quarantined_at) WHERE (cause = 'failed'::text);
CREATE INDEX ix_quarantine_open ON taskbridge.quarantine USING btree (pipeline, tenant) WHERE ((discarded_at IS NULL) AND (retry_at IS NULL));
CREATE INDEX ix_quarantine_retry ON taskbridge.quarantine USING btree (pipeline, tenant) WHERE (retry_at IS NOT NULL);
CREATE INDEX ix_received_received_at ON taskbridge.received USING btree (received_at);
CREATE INDEX ix_records_source_tenant_xid_id ON taskbridge.records USING btree (source, tenant, xid, id);
CREATE INDEX ix_records_source_xid_id ON taskbridge.records USING btree (source, xid, id) WHERE (id > 0);
CREATE INDEX ix_records_unmatched ON taskbridge.records USING btree (source, id) WHERE (tenant = ''::text);
CREATE INDEX ix_runs_failed ON ONLY taskbridge.runs USING btree (pipeline, ended_at, token) WHERE (outcome = 'failed'::text);
CREATE INDEX ix_runs_pipeline_ended_at ON ONLY taskbridge.runs USING btree (pipeline, ended_at, token);
CREATE INDEX ix_sync_cursors_failing ON taskbridge.sync_cursors USING btree (pipeline, tenant) WHERE (failures > 0);
CREATE INDEX runs_other_pipeline_ended_at_token_idx ON taskbridge.runs_other USING btree (pipeline, ended_at, token) WHERE (outcome = 'failed'::text);
CREATE INDEX runs_other_pipeline_ended_at_token_idx1 ON taskbridge.runs_other USING btree (pipeline, ended_at, token);

ALTER INDEX taskbridge.ix_runs_failed ATTACH PARTITION taskbridge.runs_other_pipeline_ended_at_token_idx;

ALTER INDEX taskbridge.ix_runs_pipeline_ended_at ATTACH PARTITION taskbridge.runs_other_pipeline_ended_at_token_idx1;

ALTER INDEX taskbridge.pk_runs ATTACH PARTITION taskbridge.runs_other_pkey;

CREATE TRIGGER number_columns BEFORE INSERT OR UPDATE OF relation, tenant_column, key_columns, watched_columns ON taskbridge.adopted FOR EACH ROW EXECUTE FUNCTION taskbridge.number_columns();

CREATE TRIGGER records_changed BEFORE UPDATE ON taskbridge.records FOR EACH ROW WHEN (((old.* IS DISTINCT FROM new.*) AND ((current_setting('taskbridge.keep_ids'::text, true) IS DISTINCT FROM 'on'::text) OR (NOT taskbridge.owns_records())))) EXECUTE FUNCTION taskbridge.stamp_record();

ALTER TABLE taskbridge.records ENABLE ALWAYS TRIGGER records_changed;

CREATE TRIGGER records_in_cluster BEFORE INSERT OR UPDATE ON taskbridge.records FOR EACH STATEMENT EXECUTE FUNCTION taskbridge.taskbridge_check_cluster();

CREATE TRIGGER records_written BEFORE INSERT ON taskbridge.records FOR EACH ROW WHEN (((current_setting('taskbridge.keep_ids'::text, true) IS DISTINCT FROM 'on'::text) OR (NOT taskbridge.owns_records()))) EXECUTE FUNCTION taskbridge.stamp_record();

ALTER TABLE taskbridge.records ENABLE ALWAYS TRIGGER records_written;

REVOKE ALL ON FUNCTION taskbridge.keep_runs(days integer) FROM PUBLIC;
