-- The columns of a table: how their type is written, and what it is below all domains.
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS written, a.attnotnull AS is_not_null,
       a.attgenerated = 'v' AS is_virtual, b.typtype = 'e' AS is_enum, b.typname AS base
FROM pg_attribute a
CROSS JOIN LATERAL (
    WITH RECURSIVE below AS (
        SELECT t.oid, t.typtype, t.typbasetype, t.typname FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.oid, t.typtype, t.typbasetype, t.typname FROM below o JOIN pg_type t ON t.oid = o.typbasetype
        WHERE o.typtype = 'd'
    )
    SELECT typtype, typname FROM below WHERE typtype <> 'd'
) b
WHERE a.attrelid = %(relation)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
