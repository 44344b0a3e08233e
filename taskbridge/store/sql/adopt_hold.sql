-- All locks of an adoption at once, so that the time-out of this statement is that of all of them together: a table may have many
-- partitions, and those that are locked keep their writers waiting until the last one is. A table that is gone is left out.
DO $hold$
DECLARE
    tables text := (SELECT string_agg(t.name, ', ' ORDER BY t.at) FROM unnest({tables}) WITH ORDINALITY t (name, at)
                    WHERE to_regclass(t.name) IS NOT NULL);
BEGIN
    IF tables IS NOT NULL THEN
        EXECUTE 'LOCK TABLE ' || tables || ' IN {mode} MODE';
    END IF;
END $hold$
