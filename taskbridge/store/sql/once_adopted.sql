-- The sources that are adopted tables or were: of those that were, changes may be pending, and are still read from the table.
SELECT source FROM {schema}.adopted
