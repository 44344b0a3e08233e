-- One event of a tenant: start its runner, or leave word with the one that it has. With `found` nobody notified, and its
-- records were found: it waits for its turn, since many are found at once where Redis lost its data.
-- KEYS: due runner lease last queue turns
-- ARGV: pipeline tenant delay_ms lease_ms republish_ms found nonce now_ms
-- RETURNS: {STARTED, token} | {DELAYED} | {ABSORBED} | {POSTPONED}
local due_key, runner_key, lease_key, last_key, queue_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turns_key = KEYS[6]
local pipeline, tenant = ARGV[1], ARGV[2]
local delay_ms, lease_ms, republish_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local found, nonce, us = ARGV[6] == "1", ARGV[7], clock_us(ARGV[8])
local now = milliseconds(us)

if lease_ms > 0 then
  redis.call("SET", lease_key, now + lease_ms, lifetime(lease_ms, now))
end

local runner = redis.call("HMGET", runner_key, "state", "token", "held", "began", "delay", "earliest")
local state, token, held, began, pending_ms, earliest = runner[1], runner[2], runner[3], runner[4], runner[5], runner[6]

local fresh = {}
if not state then
  fresh = { "events", 1, "swept", 0, "runs", 0, "first", now, "delay", delay_ms }
  -- The start of the last run, and behind a colon until when no run may start since one took nothing; either may be missing.
  began, earliest = string.match(redis.call("GET", last_key) or "", "^(%d*):?(%d*)$")
  began, earliest = began ~= "" and began, earliest ~= "" and earliest
  if began then
    fresh[#fresh + 1], fresh[#fresh + 2] = "began", began
  end
  if earliest then
    fresh[#fresh + 1], fresh[#fresh + 2] = "earliest", earliest
  end
else
  redis.call("HINCRBY", runner_key, "events", 1)
  if not pending_ms or delay_ms < tonumber(pending_ms) then
    redis.call("HSET", runner_key, "delay", delay_ms)
  end
  if state ~= "waiting" or held then
    return { ABSORBED }
  end
end

local start = math.max(began and began + delay_ms or 0, tonumber(earliest or 0))
if start <= now and found then
  if not state then
    redis.call("HSET", runner_key, unpack(fresh))
  end
  wait_for_turn(due_key, runner_key, turns_key, pipeline, tenant, us)
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
