-- A tenant has records that no run of it has looked at: start its runner, or leave word with the one that it has. However
-- often it is said, it counts as one event until a run begins, and where events came, as none after that. It waits for its turn where enough runs are queued, and where
-- nobody knows what has `looked` at these records, since many are found at once where Redis lost its data. In that case a run
-- that is under way is not told either: it may be the one that handles them.
-- KEYS: due runner last queue turns
-- ARGV: pipeline tenant delay_ms last_ms republish_ms most_queued looked nonce now_ms
-- RETURNS: {STARTED, token} | {POSTPONED} | {DELAYED} | {ABSORBED}; `last_ms` is the last run as Postgres has it, or empty
local due_key, runner_key, last_key, queue_key, turns_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
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
  -- Redis may have come back with an older one.
  if last_ms and last_ms > (began or 0) then
    began = last_ms
  end
  add_last_run(fresh, began, earliest)
else
  if events == swept then
    redis.call("HSET", runner_key, "events", events + 1, "reminded", 1)
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
if start <= now and (looked or redis.call("LLEN", queue_key) >= most_queued) then
  if not state then
    redis.call("HSET", runner_key, unpack(fresh))
  end
  wait_for_turn(due_key, runner_key, turns_key, pipeline, tenant, us, "found")
  return { POSTPONED }
elseif start <= now then
  token = new_token(us, token, nonce)
  queue_run(due_key, runner_key, tenant, token, republish_ms, us, unpack(fresh))
  publish(queue_key, pipeline, tenant, token, us)
  return { STARTED, token }
elseif state then
  redis.call("ZADD", due_key, "LT", start, tenant)
else
  redis.call("HSET", runner_key, "state", "waiting", unpack(fresh))
  redis.call("ZADD", due_key, start, tenant)
end
return { DELAYED }
