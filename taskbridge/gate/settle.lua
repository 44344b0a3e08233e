-- The run ends: `more` records are left, all is `done`, `retry` after a while, or the cursor has an owner that
-- `outranked` the token.
-- KEYS: due runner lease last queue
-- ARGV: pipeline tenant token outcome took retry_ms empty_tick_ms last_ttl_ms owner republish_ms nonce now_ms
-- RETURNS: {CONTINUED, token} | {LINGERING} | {FINISHED} | {HELD} | {REISSUED, token} | {LOST}
local due_key, runner_key, lease_key, last_key, queue_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pipeline, tenant, token, outcome, took = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local retry_ms, empty_tick_ms, last_ttl_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local owner, republish_ms, nonce, us = ARGV[9], tonumber(ARGV[10]), ARGV[11], clock_us(ARGV[12])
local now = milliseconds(us)

local runner = redis.call("HMGET", runner_key, "state", "token", "events", "swept", "began", "delay", "before")
local state, current, events, swept, began, pending_ms =
  runner[1], runner[2], tonumber(runner[3]), tonumber(runner[4]), tonumber(runner[5]), tonumber(runner[6])
local before = tonumber(runner[7])
if state ~= "running" or current ~= token then
  return { LOST }
end

local function continue(answer, floor)
  local next_token = new_token(us, floor, nonce)
  queue_run(due_key, runner_key, tenant, next_token, republish_ms, us)
  publish(queue_key, pipeline, tenant, next_token, us)
  return { answer, next_token }
end

local function wait_until(deadline, answer)
  redis.call("HSET", runner_key, "state", "waiting")
  redis.call("ZADD", due_key, deadline, tenant)
  return { answer }
end

if outcome == "more" or outcome == "done" then
  redis.call("HDEL", runner_key, "failures")
end
if outcome == "more" then
  return continue(CONTINUED, token)
elseif outcome == "outranked" then
  return continue(REISSUED, owner)
elseif outcome == "retry" then
  redis.call("HSET", runner_key, "held", 1)
  redis.call("HINCRBY", runner_key, "failures", 1)
  return wait_until(now + retry_ms, HELD)
elseif outcome ~= "done" then
  return redis.error_reply("settle: unknown outcome " .. outcome)
end

-- Where delays count from the last run, a run that took nothing was none.
local last = began
if took == 0 and last_ttl_ms > 0 then
  last = before
  if before then
    redis.call("HSET", runner_key, "began", before)
  else
    redis.call("HDEL", runner_key, "began")
  end
end

if events > swept then
  if not last or last + pending_ms <= now then
    return continue(CONTINUED, token)
  end
  return wait_until(last + pending_ms, LINGERING)
end

local lease_end = tonumber(redis.call("GET", lease_key) or 0)
if lease_end > now then
  if empty_tick_ms > 0 then
    lease_end = math.min(lease_end, math.max(now, began + empty_tick_ms))
  end
  return wait_until(lease_end, LINGERING)
end

redis.call("DEL", runner_key)
redis.call("ZREM", due_key, tenant)
if last and last_ttl_ms > 0 and last + last_ttl_ms > now then
  redis.call("SET", last_key, last, "PXAT", last + last_ttl_ms)
end
return { FINISHED }
