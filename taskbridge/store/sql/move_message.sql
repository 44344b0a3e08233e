-- A message lies under another source from now on. No row: it was recorded there meanwhile.
UPDATE {schema}.messages m SET source = %(source)s
WHERE m.source = %(under)s AND m.key = %(key)s
  AND NOT EXISTS (SELECT FROM {schema}.messages o WHERE o.source = %(source)s AND o.key = %(key)s)
RETURNING m.key
