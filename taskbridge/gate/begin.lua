-- A run message arrived: take the runner, unless the message is late or doubled.
-- KEYS: due runner
-- ARGV: tenant token ttl_ms now_ms
-- RETURNS: {BEGUN, events, new_events, runs, failures, age_ms} | {REFUSED}
local due_key, runner_key = KEYS[1], KEYS[2]
local tenant, token, ttl_ms, us = ARGV[1], ARGV[2], tonumber(ARGV[3]), clock_us(ARGV[4])
local now = milliseconds(us)

local runner = redis.call("HMGET", runner_key, "state", "token", "events", "swept", "failures", "first",
  "began")
local state, current, events, swept, failures, first, last =
  runner[1], runner[2], runner[3], runner[4], runner[5], runner[6], runner[7]
if state ~= "queued" or current ~= token then
  return { REFUSED }
end
redis.call("HSET", runner_key, "state", "running", "swept", events, "began", now)
redis.call("HDEL", runner_key, "delay", "patience", "before")
if last then
  redis.call("HSET", runner_key, "before", last)
end
redis.call("ZADD", due_key, now + ttl_ms, tenant)
local runs = redis.call("HINCRBY", runner_key, "runs", 1)
return { BEGUN, tonumber(events), events - swept, runs, tonumber(failures or 0), now - first }
