-- Where the revision of a schema is kept. Null: there is none.
SELECT to_regclass(%(table)s)
