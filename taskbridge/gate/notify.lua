-- Events of tenants: start each one's runner, or count the event for the runner that it has.
-- KEYS: due queue turns shares
-- KEYS OF EACH: runner lease last
-- ARGV: pipeline republish_ms traceparent nonce now_ms
-- ARGV OF EACH: tenant delay_ms lease_ms
-- RETURNS: of each {STARTED, token} | {DELAYED, runner} | {ABSORBED, runner}
-- With a `traceparent`, that of the sender's span, `runner` is {token of the run that is queued or on, traceparent of the runner's
-- first event}, each empty where there is none; else nothing.
local due_key, queue_key, turns_key, shares_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pipeline, republish_ms, traceparent, nonce, us = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], clock_us(ARGV[5])

-- Tenants whose runs this call started. A tenant may stand in it several times.
local started = {}

local function told(state, token, first)
  return traceparent ~= "" and { state ~= "waiting" and token or "", first or "" }
end

local function notify(runner_key, lease_key, last_key, tenant, delay_ms, lease_ms, own_us)
  local now = milliseconds(own_us)
  if lease_ms > 0 then
    redis.call("SET", lease_key, now + lease_ms, lifetime(lease_ms, now))
  end

  local runner = redis.call("HMGET", runner_key, "state", "token", "held", "began", "delay", "earliest", "traceparent")
  local state, token, held, began, pending_ms, earliest, first = unpack(runner)

  if state == "queued" and has_issued(nonce, token) and not started[tenant] then
    started[tenant] = true
    return STARTED, token
  end

  local fresh = {}
  if not state then
    fresh = { "events", 1, "swept", 0, "runs", 0, "first", now, "delay", delay_ms }
    began, earliest = last_run(last_key)
    add_last_run(fresh, began, earliest)
    if traceparent ~= "" then
      fresh[#fresh + 1], fresh[#fresh + 2] = "traceparent", traceparent
    end
  else
    redis.call("HINCRBY", runner_key, "events", 1)
    if not pending_ms or delay_ms < tonumber(pending_ms) then
      redis.call("HSET", runner_key, "delay", delay_ms)
    end
    if state ~= "waiting" or held and held ~= "found" then
      return ABSORBED, told(state, token, first)
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
    token = new_token(own_us, token, nonce)
    queue_run(due_key, runner_key, tenant, token, republish_ms, own_us, "queue", "first", unpack(fresh))
    publish(queue_key, pipeline, tenant, token, own_us)
    started[tenant] = true
    return STARTED, token
  elseif held then
    return ABSORBED, told(state, token, first)
  elseif state then
    redis.call("ZADD", due_key, "LT", start, tenant)
    return DELAYED, told(state, token, first)
  end
  redis.call("HSET", runner_key, "state", "waiting", unpack(fresh))
  redis.call("ZADD", due_key, start, tenant)
  return DELAYED, false
end

local replies = {}
for at = 1, (#ARGV - 5) / 3 do
  local runner_key, lease_key, last_key = KEYS[3 * at + 2], KEYS[3 * at + 3], KEYS[3 * at + 4]
  local tenant, delay_ms, lease_ms = ARGV[3 * at + 3], tonumber(ARGV[3 * at + 4]), tonumber(ARGV[3 * at + 5])
  -- Each has a microsecond of its own, as if it were called alone: tokens come from it.
  replies[2 * at - 1], replies[2 * at] = notify(runner_key, lease_key, last_key, tenant, delay_ms, lease_ms, us + at - 1)
end
return replies
