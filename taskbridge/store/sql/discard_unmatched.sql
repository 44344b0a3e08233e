-- Give some unmatched records up. They stay until they are pruned, so that a message that comes again is known. One that
-- somebody writes at this moment is not waited for, since the writer could wait for this statement next, which is a deadlock:
-- its row says that it is held.
WITH wanted AS MATERIALIZED (
    SELECT source, tenant, key FROM {schema}.records
    WHERE source = %(source)s AND tenant = '' AND discarded_at IS NULL AND key = ANY (%(keys)s::text[])
), free AS MATERIALIZED (
    SELECT r.source, r.tenant, r.key
    FROM wanted w
    JOIN {schema}.records r ON r.source = w.source AND r.tenant = w.tenant AND r.key = w.key
    WHERE r.discarded_at IS NULL
    FOR NO KEY UPDATE OF r SKIP LOCKED
), given_up AS (
    UPDATE {schema}.records r SET discarded_at = now()
    FROM free f
    WHERE r.source = f.source AND r.tenant = f.tenant AND r.key = f.key
    RETURNING r.key
)
SELECT w.key, g.key IS NULL AS held FROM wanted w LEFT JOIN given_up g ON g.key = w.key
