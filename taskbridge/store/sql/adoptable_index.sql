-- The columns of a unique index that consists of some of `columns`: a row is found by it, and no two rows are one record.
SELECT k.names
FROM pg_index i
CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text ORDER BY p.at) AS names
    FROM generate_series(0, i.indnkeyatts - 1) p (at)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[p.at]
) k
WHERE i.indrelid = %(relation)s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.names <@ %(columns)s::text[]
ORDER BY i.indisprimary DESC, cardinality(k.names), i.indexrelid
LIMIT 1
