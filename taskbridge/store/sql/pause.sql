-- Pause a tenant, or with an empty tenant the whole pipeline. One that is paused stays so; a new reason takes the place
-- of the old one.
INSERT INTO {schema}.pauses AS p (pipeline, tenant, reason, paused_by)
VALUES (%(pipeline)s, %(tenant)s, %(reason)s, %(by)s)
ON CONFLICT (pipeline, tenant) DO UPDATE SET reason = coalesce(excluded.reason, p.reason)
RETURNING nullif(tenant, '') AS tenant, reason, paused_at, paused_by, paused_at < now() AS already
