-- Part of the script that keeps the gate's time. It is called many times a second by every worker.

-- Note the time, and let the server's clock count from there if it is behind: after a failover to a server with
-- another clock, say. What was said until then, be it a deadline, a back-off or an open circuit, keeps its meaning.
local function keep_time(us)
  if behind_us > 0 then
    redis.call("HINCRBY", clock_key, "offset", string.format("%.0f", behind_us))
  end
  if us - (redis.call("HGET", clock_key, "mark") or 0) >= MARK_EVERY_US then
    redis.call("HSET", clock_key, "mark", string.format("%.0f", us))
    -- So that a deployment that is no more leaves nothing.
    redis.call("PEXPIRE", clock_key, MONTH_MS)
  end
end
