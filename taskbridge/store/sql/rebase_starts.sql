-- Pipelines that did not begin with everything begin behind all rows that there are: what is pending is in quarantine by now.
UPDATE {schema}.pipelines SET start = %(snapshot)s::pg_snapshot WHERE start::text <> '1:1:'
