-- A part of other queries: with each row `q` of quarantine its record `i`. A row is about one revision: it means nothing once
-- the record has changed, or is gone.
JOIN {schema}.records i
    ON i.source = %(source)s AND i.tenant = q.tenant AND i.key = q.external_id AND i.revision = q.revision
