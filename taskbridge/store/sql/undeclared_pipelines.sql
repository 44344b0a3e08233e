-- How many tenants each pipeline has that is not among those named.
SELECT pipeline, count(*) AS tenants FROM sync_cursors WHERE pipeline <> ALL (%(declared)s)
GROUP BY pipeline ORDER BY pipeline
