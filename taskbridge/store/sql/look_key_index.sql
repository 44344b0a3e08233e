-- Whether somebody made an index on the key of records.
SELECT EXISTS (
    SELECT FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = 'key'
    WHERE i.indrelid = '{schema}.records'::regclass AND i.indisvalid AND i.indpred IS NULL
)
