-- A tenant has records that no run of it has looked at: start its runner, or leave word with the one that it has. However
-- often it is said, it counts as one event until a run begins. Where enough runs are queued, the ticker starts this one.
-- A run that is under way is told only if it may not have `looked` at these records.
-- KEYS: due runner last queue
-- ARGV: pipeline tenant delay_ms last_ms republish_ms most_queued looked nonce now_ms
-- RETURNS: {STARTED, token} | {DELAYED} | {ABSORBED}; `last_ms` is the last run as Postgres has it, or empty
local due_key, runner_key, last_key, queue_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pipeline, tenant, delay_ms, last_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local republish_ms, most_queued, looked = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == "1"
local nonce, us = ARGV[8], clock_us(ARGV[9])
local now = milliseconds(us)

local runner = redis.call("HMGET", runner_key, "state", "token", "held", "began", "delay", "events", "swept",
  "earliest")
local state, token, held, began, pending_ms = runner[1], runner[2], runner[3], tonumber(runner[4]), tonumber(runner[5])
local events, swept, earliest = tonumber(runner[6]), tonumber(runner[7]), tonumber(runner[8])

if state then
  -- A runner without a deadline, because a part of Redis was lost, would wait for ever.
  redis.call("ZADD", due_key, "NX", now, tenant)
end
if state == "queued" or held or state == "running" and looked then
  return { ABSORBED }
end

local fresh = {}
if not state then
  fresh = { "events", 1, "swept", 0, "runs", 0, "first", now, "delay", delay_ms }
  began, earliest = last_run(last_key)
  began = began or tonumber(last_ms)
  add_last_run(fresh, began, earliest)
else
  if events == swept then
    redis.call("HSET", runner_key, "events", events + 1)
  end
  -- Whoever settles, or waits, needs a delay, and `begin` took the former one away.
  if not pending_ms or delay_ms < pending_ms then
    redis.call("HSET", runner_key, "delay", delay_ms)
  end
  if state == "running" then
    return { ABSORBED }
  end
end

local start = math.max(now, began and began + delay_ms or 0, earliest or 0)
if start <= now and redis.call("LLEN", queue_key) < most_queued then
  token = new_token(us, token, nonce)
  queue_run(due_key, runner_key, tenant, token, republish_ms, us, unpack(fresh))
  publish(queue_key, pipeline, tenant, token, us)
  return { STARTED, token }
end
if state then
  redis.call("ZADD", due_key, "LT", start, tenant)
else
  redis.call("HSET", runner_key, "state", "waiting", unpack(fresh))
  redis.call("ZADD", due_key, start, tenant)
end
return { DELAYED }
