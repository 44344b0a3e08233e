-- Events of tenants: start the runner of each, or count the event for its existing runner.
-- USES: queueing last expiry
-- KEYS: due queue fair_queue virtual_time
-- KEYS OF EACH: runner lease last
-- ARGV: pipeline republish_ms:number traceparent nonce now_ms
-- ARGV OF EACH: tenant delay_ms:number lease_ms:number
-- RETURNS: of each {STARTED, token} | {DELAYED, runner} | {ABSORBED, runner}
-- With a `traceparent` (the sender's span), `runner` is {token of the run that is queued or running, traceparent of the runner's
-- first event}, each empty if there is none; without, it is false.

-- Tenants whose runs this call started: a tenant may occur several times.
local started = {}

local function describe(state, token, first)
  return traceparent ~= "" and { state ~= "waiting" and token or "", first or "" }
end

local function notify(own_us, runner_key, lease_key, last_key, tenant, delay_ms, lease_ms)
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
      return ABSORBED, describe(state, token, first)
    end
  end

  local start = math.max(began and began + delay_ms or 0, tonumber(earliest or 0))
  if start <= now then
    if held then
      redis.call("HDEL", runner_key, "held")
      -- The pipeline has not used this turn, so it gets it back.
      if redis.call("ZREM", fair_queue_key, pipeline .. ":" .. tenant) == 1 and redis.call("HEXISTS", virtual_time_key, pipeline) == 1 then
        redis.call("HINCRBY", virtual_time_key, pipeline, -1)
      end
    end
    token = new_token(own_us, token, nonce)
    queue_run(due_key, runner_key, tenant, token, republish_ms, own_us, "queue", "first", unpack(fresh))
    publish(queue_key, pipeline, tenant, token, own_us)
    started[tenant] = true
    return STARTED, token
  elseif held then
    return ABSORBED, describe(state, token, first)
  elseif state then
    redis.call("ZADD", due_key, "LT", start, tenant)
    return DELAYED, describe(state, token, first)
  end
  redis.call("HSET", runner_key, "state", "waiting", unpack(fresh))
  redis.call("ZADD", due_key, start, tenant)
  return DELAYED, false
end

local replies = {}
for nth = 1, count do
  -- Each gets its own microsecond, as in a separate call: tokens are made from it.
  replies[2 * nth - 1], replies[2 * nth] = notify(us + nth - 1, of_each(nth))
end
return replies
