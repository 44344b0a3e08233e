-- A table is given up. Its row stays, because records of its source do.
UPDATE {schema}.adopted SET ended_at = now() WHERE source = {source}
