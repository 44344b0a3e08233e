-- One event of a tenant: start its runner, or count the event for the runner that it has.
-- KEYS: due runner lease last queue turns shares
-- ARGV: pipeline tenant delay_ms lease_ms republish_ms nonce now_ms
-- RETURNS: {STARTED, token} | {DELAYED} | {ABSORBED}
local due_key, runner_key, lease_key, last_key, queue_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turns_key, shares_key = KEYS[6], KEYS[7]
local pipeline, tenant = ARGV[1], ARGV[2]
local delay_ms, lease_ms, republish_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local nonce, us = ARGV[6], clock_us(ARGV[7])
local now = milliseconds(us)

if lease_ms > 0 then
  redis.call("SET", lease_key, now + lease_ms, lifetime(lease_ms, now))
end

local runner = redis.call("HMGET", runner_key, "state", "token", "held", "began", "delay", "earliest")
local state, token, held, began, pending_ms, earliest = runner[1], runner[2], runner[3], runner[4], runner[5], runner[6]

local fresh = {}
if not state then
  fresh = { "events", 1, "swept", 0, "runs", 0, "first", now, "delay", delay_ms }
  began, earliest = last_run(last_key)
  add_last_run(fresh, began, earliest)
else
  redis.call("HINCRBY", runner_key, "events", 1)
  if not pending_ms or delay_ms < tonumber(pending_ms) then
    redis.call("HSET", runner_key, "delay", delay_ms)
  end
  if state ~= "waiting" or held and held ~= "found" then
    return { ABSORBED }
  end
end

local start = math.max(began and began + delay_ms or 0, tonumber(earliest or 0))
if start <= now then
  if held then
    redis.call("HDEL", runner_key, "held")
    -- Its pipeline was not given that turn, so it has another.
    if redis.call("ZREM", turns_key, pipeline .. ":" .. tenant) == 1 and redis.call("HEXISTS", shares_key, pipeline) == 1 then
      redis.call("HINCRBY", shares_key, pipeline, -1)
    end
  end
  token = new_token(us, token, nonce)
  queue_run(due_key, runner_key, tenant, token, republish_ms, us, "queue", "first", unpack(fresh))
  publish(queue_key, pipeline, tenant, token, us)
  return { STARTED, token }
elseif held then
  return { ABSORBED }
elseif state then
  redis.call("ZADD", due_key, "LT", start, tenant)
else
  redis.call("HSET", runner_key, "state", "waiting", unpack(fresh))
  redis.call("ZADD", due_key, start, tenant)
end
return { DELAYED }
