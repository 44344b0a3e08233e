-- A worker took the run's message that does not declare the pipeline: a worker that does publishes it again soon. Until then
-- it counts for nobody as a run that is queued.
-- KEYS: due runner handed reminded sent
-- ARGV: pipeline tenant token republish_ms now_ms
-- RETURNS: {DECLINED} | {LOST}
local due_key, runner_key, handed_key, reminded_key, sent_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pipeline, tenant, token, republish_ms, us = ARGV[1], ARGV[2], ARGV[3], ARGV[4], clock_us(ARGV[5])

local runner = redis.call("HMGET", runner_key, "state", "token")
local state, current = runner[1], runner[2]
if state ~= "queued" or current ~= token then
  return { LOST }
end
redis.call("ZREM", handed_key, pipeline .. ":" .. tenant)
redis.call("ZREM", reminded_key, pipeline .. ":" .. tenant)
redis.call("ZREM", sent_key, tenant)
redis.call("HSET", runner_key, "patience", republish_ms)
redis.call("ZADD", due_key, milliseconds(us) + DECLINED_MS, tenant)
return { DECLINED }
