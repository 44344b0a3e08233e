-- May the caller look for forgotten records? One process may in each interval.
-- KEYS: reconciled
-- ARGV: interval_ms now_ms
-- RETURNS: {claimed}: 1 or 0
local reconciled_key = KEYS[1]
local interval_ms, us = tonumber(ARGV[1]), clock_us(ARGV[2])
local now = milliseconds(us)

-- The end stands in the value: a server whose clock is behind would keep the key for longer.
local claimed = 0
if tonumber(redis.call("GET", reconciled_key) or 0) <= now then
  claimed = 1
  redis.call("SET", reconciled_key, string.format("%.0f", now + interval_ms), "PX", interval_ms)
end
return { claimed }
