SET LOCAL lock_timeout = '100ms';

CREATE OR REPLACE FUNCTION "taskbridge"."adopted_orders"() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS $taskbridge$
DECLARE
    -- A transaction whose snapshot is older than the adoption does not see it, and goes on.
    ours oid := (SELECT a.relation FROM "taskbridge".adopted a WHERE a.source = 'orders');
    -- Only a superuser could set it in the head of the function.
    keep_ids text := current_setting('taskbridge.keep_ids', true);
    ignored text := set_config('taskbridge.keep_ids', 'on', true);
BEGIN
    IF ours <> TG_RELID AND ours IS DISTINCT FROM pg_partition_root(TG_RELID) THEN
        -- It may have become a part of another table; where it was dropped, this one was restored.
        IF NOT EXISTS (SELECT FROM pg_partition_ancestors(TG_RELID) p WHERE p.relid = ours)
            AND EXISTS (SELECT FROM pg_class c WHERE c.oid = ours)
        THEN
            RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
                MESSAGE = format('%s is not the table that was adopted as the source %s', TG_RELID::regclass, 'orders');
        END IF;
    END IF;
    IF TG_OP = 'INSERT' THEN
INSERT INTO "taskbridge".records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT 'orders', s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       s.revision, s.revision, pg_current_xact_id()
FROM (
    SELECT o.*, nextval('"taskbridge".revisions') AS revision
    FROM (
        SELECT DISTINCT ON (u.tenant, u.key) u.*
        FROM (
            SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
                   CASE WHEN w.reason IS NULL THEN w.key ELSE "taskbridge".shown(w.key) || ' ' || md5(quote_literal(w.tenant) || w.key) END
                       COLLATE "C" AS key,
                   w.gone, w.reason
            FROM (
                SELECT c.*, "taskbridge".unfit(c.tenant, c.key) AS reason
                FROM (
SELECT (format('%s', n."customer")) COLLATE "C" AS tenant, (format('%s', n."id")) COLLATE "C" AS key, false AS gone
FROM new_rows n
WHERE n."customer" IS NOT NULL AND n."id" IS NOT NULL
                ) c
                OFFSET 0
            ) w
        ) u
        ORDER BY u.tenant, u.key, u.gone
    ) o
) s
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = NULL, deleted = excluded.deleted, revision = excluded.revision, xid = excluded.xid, changed_at = now(),
    reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id();
    ELSIF TG_OP = 'UPDATE' THEN
INSERT INTO "taskbridge".records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT 'orders', s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       s.revision, s.revision, pg_current_xact_id()
FROM (
    SELECT o.*, nextval('"taskbridge".revisions') AS revision
    FROM (
        SELECT DISTINCT ON (u.tenant, u.key) u.*
        FROM (
            SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
                   CASE WHEN w.reason IS NULL THEN w.key ELSE "taskbridge".shown(w.key) || ' ' || md5(quote_literal(w.tenant) || w.key) END
                       COLLATE "C" AS key,
                   w.gone, w.reason
            FROM (
                SELECT c.*, "taskbridge".unfit(c.tenant, c.key) AS reason
                FROM (
SELECT coalesce(n.tenant, o.tenant) AS tenant, coalesce(n.key, o.key) AS key, n.key IS NULL AS gone
FROM (
    SELECT (format('%s', n."customer")) COLLATE "C" AS tenant, (format('%s', n."id")) COLLATE "C" AS key, ROW(n.*)::record AS watched
    FROM new_rows n
    WHERE n."customer" IS NOT NULL AND n."id" IS NOT NULL
) n
FULL JOIN (
    SELECT (format('%s', o."customer")) COLLATE "C" AS tenant, (format('%s', o."id")) COLLATE "C" AS key, ROW(o.*)::record AS watched
    FROM old_rows o
    WHERE o."customer" IS NOT NULL AND o."id" IS NOT NULL
) o ON n.tenant = o.tenant AND n.key = o.key
WHERE o.key IS NULL
   OR (n.key IS NULL OR n.watched OPERATOR(pg_catalog.*<>) o.watched)
      AND (SELECT current_setting('taskbridge.muted', true)) IS DISTINCT FROM '"taskbridge":' || 'orders' || ':' || o.tenant
                ) c
                OFFSET 0
            ) w
        ) u
        ORDER BY u.tenant, u.key, u.gone
    ) o
) s
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = NULL, deleted = excluded.deleted, revision = excluded.revision, xid = excluded.xid, changed_at = now(),
    reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id();
    ELSIF TG_OP = 'DELETE' THEN
INSERT INTO "taskbridge".records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT 'orders', s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       s.revision, s.revision, pg_current_xact_id()
FROM (
    SELECT o.*, nextval('"taskbridge".revisions') AS revision
    FROM (
        SELECT DISTINCT ON (u.tenant, u.key) u.*
        FROM (
            SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
                   CASE WHEN w.reason IS NULL THEN w.key ELSE "taskbridge".shown(w.key) || ' ' || md5(quote_literal(w.tenant) || w.key) END
                       COLLATE "C" AS key,
                   w.gone, w.reason
            FROM (
                SELECT c.*, "taskbridge".unfit(c.tenant, c.key) AS reason
                FROM (
SELECT (format('%s', o."customer")) COLLATE "C" AS tenant, (format('%s', o."id")) COLLATE "C" AS key, true AS gone
FROM old_rows o
WHERE o."customer" IS NOT NULL AND o."id" IS NOT NULL AND (SELECT current_setting('taskbridge.muted', true)) IS DISTINCT FROM '"taskbridge":' || 'orders' || ':' || (format('%s', o."customer")) COLLATE "C"
                ) c
                OFFSET 0
            ) w
        ) u
        ORDER BY u.tenant, u.key, u.gone
    ) o
) s
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = NULL, deleted = excluded.deleted, revision = excluded.revision, xid = excluded.xid, changed_at = now(),
    reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id();
    ELSE
        -- Nothing says which rows a TRUNCATE takes, so it is asked before. A partition has a name of its own.
        EXECUTE $truncate$
INSERT INTO "taskbridge".records AS r (source, tenant, key, deleted, reason, discarded_at, id, revision, xid)
SELECT 'orders', s.tenant, s.key, s.gone, s.reason, CASE WHEN s.reason IS NOT NULL AND s.gone THEN now() END,
       s.revision, s.revision, pg_current_xact_id()
FROM (
    SELECT o.*, nextval('"taskbridge".revisions') AS revision
    FROM (
        SELECT DISTINCT ON (u.tenant, u.key) u.*
        FROM (
            SELECT CASE WHEN w.reason IS NULL THEN w.tenant ELSE '' END AS tenant,
                   CASE WHEN w.reason IS NULL THEN w.key ELSE "taskbridge".shown(w.key) || ' ' || md5(quote_literal(w.tenant) || w.key) END
                       COLLATE "C" AS key,
                   w.gone, w.reason
            FROM (
                SELECT c.*, "taskbridge".unfit(c.tenant, c.key) AS reason
                FROM (
SELECT (format('%s', o."customer")) COLLATE "C" AS tenant, (format('%s', o."id")) COLLATE "C" AS key, true AS gone
FROM $truncate$ || TG_RELID::regclass::text || $truncate$ o
WHERE o."customer" IS NOT NULL AND o."id" IS NOT NULL AND (SELECT current_setting('taskbridge.muted', true)) IS DISTINCT FROM '"taskbridge":' || 'orders' || ':' || (format('%s', o."customer")) COLLATE "C"
                ) c
                OFFSET 0
            ) w
        ) u
        ORDER BY u.tenant, u.key, u.gone
    ) o
) s
ON CONFLICT (source, tenant, key) DO UPDATE
SET document = NULL, deleted = excluded.deleted, revision = excluded.revision, xid = excluded.xid, changed_at = now(),
    reason = excluded.reason, discarded_at = excluded.discarded_at
WHERE r.deleted <> excluded.deleted OR r.document IS NOT NULL OR r.xid <> pg_current_xact_id()$truncate$;
    END IF;
    ignored := set_config('taskbridge.keep_ids', keep_ids, true);
    RETURN NULL;
END
$taskbridge$;

DO $rights$ BEGIN
    EXECUTE 'REVOKE EXECUTE ON FUNCTION "taskbridge"."adopted_orders"() FROM PUBLIC';
    EXECUTE 'GRANT EXECUTE ON FUNCTION "taskbridge"."adopted_orders"() TO '
        || (SELECT c.relowner::regrole::text FROM pg_class c WHERE c.oid = 'public.orders_order'::regclass);
END $rights$;

INSERT INTO "taskbridge".adopted AS a (source, relation, name, tenant_column, key_columns, watched_columns, digest)
VALUES ('orders', 'public.orders_order'::regclass, 'public.orders_order', 'customer', ARRAY['id'], NULL, '0f419ccb20f6abcb042b98458b6cf8441a21f3f8e1156bf6cf402d9bd09223de')
ON CONFLICT (source) DO UPDATE
SET relation = excluded.relation, name = excluded.name, tenant_column = excluded.tenant_column,
    key_columns = excluded.key_columns, watched_columns = excluded.watched_columns, digest = excluded.digest,
    version = DEFAULT, adopted_at = now(), ended_at = NULL,
    backfill_after = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.backfill_after END,
    backfilled = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.backfilled ELSE 0 END,
    backfilled_at = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.backfilled_at END,
    again_below = CASE WHEN a.ended_at IS NULL AND a.relation = excluded.relation THEN a.again_below
                       ELSE nextval('"taskbridge".revisions') END;

CREATE OR REPLACE TRIGGER "taskbridge_orders_insert" AFTER INSERT ON public.orders_order
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION "taskbridge"."adopted_orders"();

ALTER TABLE public.orders_order ENABLE ALWAYS TRIGGER "taskbridge_orders_insert";

CREATE OR REPLACE TRIGGER "taskbridge_orders_update" AFTER UPDATE ON public.orders_order
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION "taskbridge"."adopted_orders"();

ALTER TABLE public.orders_order ENABLE ALWAYS TRIGGER "taskbridge_orders_update";

CREATE OR REPLACE TRIGGER "taskbridge_orders_delete" AFTER DELETE ON public.orders_order
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION "taskbridge"."adopted_orders"();

ALTER TABLE public.orders_order ENABLE ALWAYS TRIGGER "taskbridge_orders_delete";

CREATE OR REPLACE TRIGGER "taskbridge_orders_truncate" BEFORE TRUNCATE ON public.orders_order
    FOR EACH STATEMENT EXECUTE FUNCTION "taskbridge"."adopted_orders"();

ALTER TABLE public.orders_order ENABLE ALWAYS TRIGGER "taskbridge_orders_truncate";

