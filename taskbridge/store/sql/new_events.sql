-- Within `claim.sql`: the events of the burst so far, less those that were counted for it before.
CASE WHEN {same_burst} THEN greatest(0, excluded.burst_events - c.burst_events) ELSE excluded.burst_events END
