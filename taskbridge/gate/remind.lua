-- Tenants have pending records: start each one's runner, or note it in the runner that it has. However often they are found,
-- that counts as one event until a run begins, and as none after that where an event came too, or the burst is on. Those
-- without a runner wait for their turn where many of them are queued, since first events stand behind these. So they do where
-- a base round found them (`by_reconciler`): where Redis lost its data it finds many at once. Who waits for a deadline keeps it: where
-- many come due at once, the ticker starts them, and turns are far slower. A run that is under way may be handling those, so
-- it is not told.
-- USES: queueing last fair_queue in_flight
-- KEYS: due queue fair_queue virtual_time in_flight
-- KEYS OF EACH: runner last
-- ARGV: pipeline republish_ms:number most_in_flight:number by_reconciler:flag keeps_last:flag nonce now_ms
-- ARGV OF EACH: tenant delay_ms:number last_ms:number
-- RETURNS: of each {STARTED, token} | {POSTPONED} | {DELAYED} | {ABSORBED}; `last_ms` is the last run as Postgres has it, or empty

-- How many runs may still be queued. The queue's length would say nothing where the broker is another server.
local room = by_reconciler and 0 or most_in_flight - count_in_flight(in_flight_key, true, now)

-- Tenants whose runs this call started. A tenant may stand in it several times.
local started = {}

local function remind(own_us, runner_key, last_key, tenant, delay_ms, last_ms)
  local now = milliseconds(own_us)
  -- Most have no runner, or a run that is coming: of these nothing else is asked.
  local state, token = unpack(redis.call("HMGET", runner_key, "state", "token"))
  local held, began, pending_ms, events, swept, earliest
  if state then
    -- A runner without a deadline, because a part of Redis was lost, would wait for ever.
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
      -- Nobody reminds a tenant that is paused, so the pause is over, and whoever ended it has not started the tenant.
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
    -- A clock of Postgres that is ahead says nothing; and Redis may have come back with an older one.
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
    -- Whoever settles, or waits, needs a delay, and `begin` took the former one away.
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
  -- Each has a microsecond of its own, as if it were called alone: tokens come from it.
  replies[2 * nth - 1], replies[2 * nth] = remind(us + nth - 1, of_each(nth))
end
write_fair_queue(due_key, fair_queue_key)
keep_virtual_time(fair_queue_key, virtual_time_key, pipeline)
return replies
