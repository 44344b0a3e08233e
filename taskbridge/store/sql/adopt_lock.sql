-- Before a table is adopted or given up: two that make the same function at once would fail.
LOCK TABLE {schema}.adopted IN SHARE ROW EXCLUSIVE MODE
