-- What people decided about one record since a time, in order: to try it again, or to give it up. Of the last `size`
-- actions. `key` null: it was about many at once, among which the record may have been.
SELECT at, who, action, key
FROM (SELECT * FROM {schema}.audit ORDER BY id DESC LIMIT %(size)s) a
WHERE pipeline = %(pipeline)s AND (tenant = %(tenant)s OR tenant IS NULL) AND (key = %(key)s OR key IS NULL)
  AND action IN ('retry', 'discard') AND at >= %(since)s::timestamptz
ORDER BY id
