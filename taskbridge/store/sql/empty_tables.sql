-- Between tests that share a database.
TRUNCATE {tables}
