-- Per pipeline: the sums of its cursors' counters, for metrics. Reads every cursor once.
SELECT pipeline,
       sum(events)::bigint AS events,
       sum(bursts + found_bursts)::bigint AS bursts,
       sum(found_bursts)::bigint AS found_bursts,
       sum(runs)::bigint AS runs,
       sum(sweeps)::bigint AS sweeps,
       sum(records)::bigint AS records,
       sum(failed_runs)::bigint AS failed_runs,
       sum(first_event_ms_sum)::bigint AS first_event_ms_sum,
       ARRAY[{sums}] AS first_event_counts
FROM {schema}.sync_cursors
GROUP BY pipeline
