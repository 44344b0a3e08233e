-- Part of the script that keeps the gate's time. It is called many times a second by every worker.

-- Store the time, and add an offset to the server's clock if that is behind, for example after a failover to a server with
-- another clock. So deadlines, back-offs and open circuits keep their meaning.
local function keep_time(us)
  if behind_us > 0 then
    redis.call("HINCRBY", clock_key, "offset", string.format("%.0f", behind_us))
  end
  if us - (redis.call("HGET", clock_key, "mark") or 0) >= MARK_EVERY_US then
    redis.call("HSET", clock_key, "mark", string.format("%.0f", us))
    -- So that a removed deployment leaves nothing behind.
    redis.call("PEXPIRE", clock_key, MONTH_MS)
  end
end
