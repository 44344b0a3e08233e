-- The run is alive: extend its deadline.
-- KEYS: due runner running
-- ARGV: tenant token ttl_ms:number now_ms
-- RETURNS: {KEPT} | {LOST}
local deadline = now + ttl_ms

local runner = redis.call("HMGET", runner_key, "state", "token")
local state, current = runner[1], runner[2]
if state ~= "running" or current ~= token then
  return { LOST }
end
redis.call("ZADD", due_key, deadline, tenant)
redis.call("ZADD", running_key, "XX", deadline, tenant)
return { KEPT }
