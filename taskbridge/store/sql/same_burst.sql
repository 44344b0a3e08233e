-- Within `claim.sql`: whether the cursor's last burst is the one of this run. A worker of before migration 0018 gives a burst no
-- name: then a later run of it that is one of ours gives it its own.
coalesce(c.burst = excluded.burst OR (excluded.burst = excluded.owner AND excluded.burst_runs > 1), false)
