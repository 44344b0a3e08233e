-- The columns of a table: how their type is written, and what it is below all domains. `operators`: the schema of its
-- equality. `base`: empty where it is a type of somebody's own. `is_numeric`: numerics, or arrays of them. `modifier`: of the
-- type, or of the domain that sets it; -1: none.
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS written, format_type(b.oid, -1) AS bare,
       quote_ident(b.space) AS operators, quote_ident(cn.nspname) || '.' || quote_ident(c.collname) AS collation,
       a.attnotnull AS is_not_null, a.attgenerated = 'v' AS is_virtual, b.typtype = 'e' AS is_enum,
       CASE WHEN b.typtype = 'b' AND (b.space = 'pg_catalog' OR b.typname = 'citext') THEN b.typname ELSE '' END AS base,
       b.is_numeric, b.is_array, b.modifier
FROM pg_attribute a
LEFT JOIN pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_namespace cn ON cn.oid = c.collnamespace
CROSS JOIN LATERAL (
    WITH RECURSIVE below AS (
        SELECT t.*, false AS in_array, greatest(a.atttypmod, t.typtypmod) AS modifier FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.*, o.in_array OR o.typtype <> 'd', greatest(o.modifier, t.typtypmod)
        FROM below o
        JOIN pg_type t ON t.oid = CASE WHEN o.typtype = 'd' THEN o.typbasetype WHEN o.typcategory = 'A' THEN o.typelem END
    )
    SELECT o.oid, o.typtype, o.typname, o.modifier, CASE WHEN o.typtype = 'e' THEN 'pg_catalog' ELSE n.nspname END AS space,
           EXISTS (SELECT FROM below WHERE oid = 'numeric'::regtype) AS is_numeric,
           EXISTS (SELECT FROM below WHERE in_array) AS is_array
    FROM below o JOIN pg_namespace n ON n.oid = o.typnamespace
    WHERE o.typtype <> 'd' AND NOT o.in_array
) b
WHERE a.attrelid = %(relation)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
