-- Tenants have pending records: start the runner of each, or note it in its existing runner. A reminder counts as an event only
-- while no real event has arrived and no run has begun. Tenants without a runner wait for their turn if many of them are queued,
-- since first events queue behind these. So do those that the reconciler found (`by_reconciler`), which finds many at once after
-- Redis lost its data. A tenant that waits for a deadline keeps it: if many are due at once the ticker starts them, and turns
-- are far slower. A run in progress may be handling these records, so it is left alone.
-- USES: queueing last fair_queue in_flight
-- KEYS: due queue fair_queue virtual_time in_flight
-- KEYS OF EACH: runner last
-- ARGV: pipeline republish_ms:number most_in_flight:number by_reconciler:flag keeps_last:flag nonce now_ms
-- ARGV OF EACH: tenant delay_ms:number last_ms:number
-- RETURNS: of each {STARTED, token} | {POSTPONED} | {DELAYED} | {ABSORBED}; `last_ms` is the last run according to Postgres, or empty

-- How many more runs may be queued. The length of the queue says nothing if the broker is another server.
local room = by_reconciler and 0 or most_in_flight - count_in_flight(in_flight_key, true, now)

-- Tenants whose runs this call started: a tenant may occur several times.
local started = {}

local function remind(own_us, runner_key, last_key, tenant, delay_ms, last_ms)
  local now = milliseconds(own_us)
  -- Most have no runner, or a queued run: for these nothing else is read.
  local state, token = unpack(redis.call("HMGET", runner_key, "state", "token"))
  local held, began, pending_ms, events, swept, earliest
  if state then
    -- A runner whose deadline was lost with a part of Redis would wait forever.
    redis.call("ZADD", due_key, "NX", now, tenant)
    if state == "queued" and has_issued(nonce, token) and not started[tenant] then
      started[tenant] = true
      return STARTED, token
    end
    if state == "queued" or state == "running" and by_reconciler then
      return ABSORBED, false
    end
    local runner = redis.call("HMGET", runner_key, "held", "began", "delay", "events", "swept", "earliest")
    held, began, pending_ms = runner[1], tonumber(runner[2]), tonumber(runner[3])
    events, swept, earliest = tonumber(runner[4]), tonumber(runner[5]), tonumber(runner[6])
    if held == "paused" then
      -- A paused tenant is not reminded, so the pause is over, but the tenant has not been started.
      redis.call("HDEL", runner_key, "held")
    elseif held then
      return ABSORBED, false
    end
  end

  local fresh = {}
  if not state then
    fresh = { "events", "1", "swept", "0", "reminded", "1", "runs", "0", "first", text(now), "delay", text(delay_ms) }
    if keeps_last then
      began, earliest = last_run(last_key)
    end
    -- The clock of Postgres may be ahead, and Redis may have come back with an older last run.
    if last_ms and last_ms > now then
      last_ms = began or now
    end
    if last_ms and last_ms > (began or 0) then
      began = last_ms
    end
    add_last_run(fresh, began, earliest)
  else
    if events == swept then
      redis.call("HSET", runner_key, "events", events + 1, "reminded", 1)
    end
    -- A run that settles and a runner that waits need a delay, and `begin` deleted the previous one.
    if not pending_ms or delay_ms < pending_ms then
      redis.call("HSET", runner_key, "delay", delay_ms)
    end
    if state == "running" then
      return ABSORBED, false
    end
  end

  local start = math.max(now, began and began + delay_ms or 0, earliest or 0)
  if start <= now and room <= 0 and not state then
    wait_for_turn(runner_key, fair_queue_key, virtual_time_key, pipeline, tenant, own_us, "found", unpack(fresh))
    return POSTPONED, false
  elseif start <= now and room > 0 then
    room = room - 1
    add_in_flight(in_flight_key, pipeline .. ":" .. tenant, true, now + republish_ms)
    token = new_token(own_us, token, nonce)
    queue_run(due_key, runner_key, tenant, token, republish_ms, own_us, "queue", "first", unpack(fresh))
    publish(queue_key, pipeline, tenant, token, own_us)
    started[tenant] = true
    return STARTED, token
  elseif state then
    redis.call("ZADD", due_key, "LT", start, tenant)
  else
    redis.call("HSET", runner_key, "state", "waiting", unpack(fresh))
    redis.call("ZADD", due_key, start, tenant)
  end
  return DELAYED, false
end

local replies = {}
for nth = 1, count do
  -- Each gets its own microsecond, as in a separate call: tokens are made from it.
  replies[2 * nth - 1], replies[2 * nth] = remind(us + nth - 1, of_each(nth))
end
write_fair_queue(due_key, fair_queue_key)
keep_virtual_time(fair_queue_key, virtual_time_key, pipeline)
return replies
