-- Which tenants are due, and when is the next one? Changes nothing.
-- KEYS: due
-- ARGV: limit now_ms
-- RETURNS: {wait_ms, late_ms, unpack(tenants)}: milliseconds until the next deadline that is not due, and since the
-- oldest that is, each -1 if there is none, and who is due
local due_key = KEYS[1]
local limit, us = tonumber(ARGV[1]), clock_us(ARGV[2])
local now = milliseconds(us)

local tenants = redis.call("ZRANGEBYSCORE", due_key, "-inf", now, "LIMIT", 0, limit)
local upcoming = redis.call("ZRANGEBYSCORE", due_key, "(" .. now, "+inf", "WITHSCORES", "LIMIT", 0, 1)
local wait_ms = -1
if upcoming[2] then
  wait_ms = upcoming[2] - now
end
local late_ms = -1
if tenants[1] then
  late_ms = now - redis.call("ZSCORE", due_key, tenants[1])
end
return { wait_ms, late_ms, unpack(tenants) }
