-- The run is alive: move its deadline on.
-- KEYS: due runner running
-- ARGV: tenant token ttl_ms now_ms
-- RETURNS: {KEPT} | {LOST}
local due_key, runner_key, running_key = KEYS[1], KEYS[2], KEYS[3]
local tenant, token, deadline = ARGV[1], ARGV[2], milliseconds(clock_us(ARGV[4])) + tonumber(ARGV[3])

local runner = redis.call("HMGET", runner_key, "state", "token")
local state, current = runner[1], runner[2]
if state ~= "running" or current ~= token then
  return { LOST }
end
redis.call("ZADD", due_key, deadline, tenant)
redis.call("ZADD", running_key, "XX", deadline, tenant)
return { KEPT }
