-- A worker that does not declare the pipeline took the run's message: a worker that does soon publishes it again. Until then it
-- does not count as a queued run.
-- KEYS: due runner fair_queue in_flight in_flight_due
-- ARGV: pipeline tenant token republish_ms now_ms
-- RETURNS: {DECLINED, next} | {LOST}; `next` is the first in the fair queue if the message was published for a turn, else empty

local runner = redis.call("HMGET", runner_key, "state", "token")
local state, current = runner[1], runner[2]
if state ~= "queued" or current ~= token then
  return { LOST }
end
local member, next_member = pipeline .. ":" .. tenant, ""
local score = tonumber(redis.call("ZSCORE", in_flight_key, member) or 0)
if score > now - GRACE_MS and score < BEHIND then
  -- No run ends here that would give the next turn.
  next_member = redis.call("ZRANGE", fair_queue_key, 0, 0)[1] or ""
end
redis.call("ZREM", in_flight_key, member)
redis.call("ZREM", in_flight_due_key, tenant)
redis.call("HSET", runner_key, "patience", republish_ms)
redis.call("ZADD", due_key, now + DECLINED_MS, tenant)
return { DECLINED, next_member }
