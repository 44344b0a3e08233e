-- One page of a backfill: tenant and key of the next rows by the unique index, and the place of each as text. A row without a
-- tenant or a key has no record. It only reads, so nobody waits for it however long it takes.
SELECT {places} AS place, {tenant} AS tenant, {key} AS key, {counts} AS counts, false AS gone
FROM (SELECT t.* FROM {table} t WHERE {after} ORDER BY {order} LIMIT %(size)s) t
ORDER BY {order}
