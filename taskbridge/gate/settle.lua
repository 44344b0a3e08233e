-- The run ends: `more` records are left, the worker is `stopped` in the middle, everything is `done`, it has to `retry` later,
-- the tenant is `paused`, or the cursor has an owner with a higher token (`stale`).
-- USES: queueing expiry fair_queue in_flight wait_queue circuit
-- KEYS: due runner last queue circuit running wait_queue fair_queue virtual_time in_flight
-- ARGV: pipeline tenant token outcome took:number handled:number failed:number blame retry_ms:number owner
--   all_wait:flag counted:flag empty_tick_ms:number last_ttl_ms:number republish_ms:number most_in_flight:number
--   most_runs:number nonce now_ms
-- RETURNS: {CONTINUED, token} | {POSTPONED} | {LINGERING} | {FINISHED} | {HELD} | {REISSUED, token} | {LOST}. The third element
-- is the tenant that may begin in this run's slot, if one is in the wait queue; the fourth is the next member of the fair queue,
-- if a turn can be given

local runner = redis.call("HMGET", runner_key, "state", "token", "events", "swept", "began", "delay", "before",
  "lease", "failures")
local state, current, events, swept, began, pending_ms =
  runner[1], runner[2], tonumber(runner[3]), tonumber(runner[4]), tonumber(runner[5]), tonumber(runner[6])
local before, lease_end, failures = tonumber(runner[7]), tonumber(runner[8]), runner[9]
if state == "queued" and has_issued(nonce, current) then
  return { outcome == "stale" and REISSUED or CONTINUED, current }
end
if state ~= "running" or current ~= token then
  return { LOST }
end

local function continue(answer, floor, at_front)
  local next_token = new_token(us, floor, nonce)
  queue_run(due_key, runner_key, tenant, next_token, republish_ms, us)
  publish(queue_key, pipeline, tenant, next_token, us, at_front)
  return { answer, next_token }
end

local function wait_until(deadline, answer)
  redis.call("HSET", runner_key, "state", "waiting")
  redis.call("ZADD", due_key, deadline, tenant)
  return { answer }
end

local function continue_now(at_front)
  add_in_flight(in_flight_key, pipeline .. ":" .. tenant, false, now + republish_ms)
  return continue(CONTINUED, token, at_front)
end

-- There is more to do: at once, or after others that wait for this run's slot or for their turn.
local function continue_in_turn()
  if redis.call("ZSCORE", running_key, tenant) and redis.call("ZCARD", wait_queue_key) > 0 then
    join_wait_queue(runner_key, wait_queue_key, tenant, now, 1)
    return wait_until(now + republish_ms, POSTPONED)
  end
  if redis.call("ZCARD", fair_queue_key) > 0 or count_in_flight(in_flight_key, false, now) >= most_in_flight then
    wait_for_turn(runner_key, fair_queue_key, virtual_time_key, pipeline, tenant, us, "turn")
    write_fair_queue(due_key, fair_queue_key)
    return { POSTPONED }
  end
  return continue_now()
end

-- The whole pipeline waits, and then begins with one run at a time (`rest` and `width` of the circuit's hash).
local function wait_with_all()
  local rest = math.max(now + retry_ms, tonumber(redis.call("HGET", circuit_key, "rest") or 0))
  redis.call("HSET", circuit_key, "rest", rest, "width", 1)
  redis.call("PEXPIRE", circuit_key, rest - now + DAY_MS)
  join_wait_queue(runner_key, wait_queue_key, tenant, now, 1)
  local reply = wait_until(rest + republish_ms, HELD)
  call_first(due_key, wait_queue_key, rest)
  return reply
end

-- This run does not count as the last one.
local function restore_last_run()
  if before then
    redis.call("HSET", runner_key, "began", before)
  else
    redis.call("HDEL", runner_key, "began")
  end
end

-- No tenant in the wait queue has to wait any longer, and there may be all tenants of the pipeline: if all were due now, the next
-- deadlines of all pipelines would queue behind their runs. They keep their deadlines, in case the fair queue is lost.
local function all_wait_for_their_turn()
  local members = {}
  for _, waiting in ipairs(redis.call("ZRANGE", wait_queue_key, 0, -1)) do
    members[#members + 1] = text(next_tag(fair_queue_key, virtual_time_key, pipeline))
    members[#members + 1] = pipeline .. ":" .. waiting
  end
  -- Lua can pass only a few thousand arguments.
  for at = 1, #members, 1000 do
    redis.call("ZADD", fair_queue_key, unpack(members, at, math.min(at + 999, #members)))
  end
  redis.call("DEL", wait_queue_key)
end

local function settle()
  if outcome == "more" then
    return continue_in_turn()
  elseif outcome == "stopped" then
    -- Its turn is not over, so it goes to the front. If the broker is another server, it goes to the end of its queue.
    return continue_now(true)
  elseif outcome == "stale" then
    return continue(REISSUED, owner)
  elseif outcome == "paused" then
    -- If the pause has ended since this run checked, a reminder starts the tenant.
    redis.call("HSET", runner_key, "held", "paused")
    return wait_until(now + DAY_MS, HELD)
  elseif outcome == "retry" then
    -- Shown to operators: without a failure, it is a wait that the handler asked for.
    redis.call("HSET", runner_key, "held", failed == 0 and blame == "" and "asked" or 1)
    if all_wait then
      return wait_with_all()
    end
    return wait_until(now + retry_ms, HELD)
  end

  -- If delays count from the last run, a run that took no record does not count. Events without records may arrive at any time,
  -- so the next run after one that took nothing waits for EMPTY_RUN_MS.
  local last, earliest = began, 0
  if took == 0 and last_ttl_ms > 0 then
    last, earliest = before, began + EMPTY_RUN_MS
    redis.call("HSET", runner_key, "earliest", earliest)
    restore_last_run()
  end
  if events > swept then
    local start = math.max(last and last + pending_ms or 0, earliest)
    if start <= now then
      return continue_in_turn()
    end
    return wait_until(start, LINGERING)
  end
  -- This write comes first: a server that is out of memory refuses it, and then nothing must have been deleted. A runner that
  -- lingers needs it too, since it ends without a settle.
  local known_until = math.max(last and last_ttl_ms > 0 and last + last_ttl_ms or 0, earliest)
  if known_until > now then
    local kept = (last or "") .. (earliest > 0 and ":" .. earliest or "")
    redis.call("SET", last_key, kept, lifetime(known_until - now, now))
  end
  if lease_end then
    local tick = empty_tick_ms > 0 and began + empty_tick_ms or lease_end
    return wait_until(math.max(now, math.min(tick, lease_end)), LINGERING)
  end
  redis.call("DEL", runner_key)
  redis.call("ZREM", due_key, tenant)
  return { FINISHED }
end

local known = { more = true, stopped = true, done = true, retry = true, paused = true, stale = true }
if not known[outcome] then
  return redis.error_reply("settle: unknown outcome " .. outcome)
end
local reply = settle()
-- A run that did nothing leaves what it got at its begin to the next one. A run that found a pause waits like a retry.
local waits = outcome == "retry" or outcome == "paused"
local did_nothing = outcome == "stale" or outcome == "stopped" and took == 0
local forgotten = {}
if not did_nothing then
  forgotten[1] = "first"
elseif last_ttl_ms > 0 then
  restore_last_run()
end
-- A death is passed on to the next run until one has counted it. If Postgres was unavailable, this one could not.
if counted or not did_nothing and not waits then
  forgotten[#forgotten + 1] = "died"
end
if reply[1] ~= FINISHED and forgotten[1] then
  redis.call("HDEL", runner_key, unpack(forgotten))
end
if failures and not waits and not did_nothing then
  redis.call("HDEL", runner_key, "failures")
elseif outcome == "retry" and failed ~= 0 then
  redis.call("HINCRBY", runner_key, "failures", 1)
end
local blamed = outcome == "retry" and blame or ""
local closes = judge(circuit_key, due_key, runner_key, wait_queue_key, tenant, blamed, handled, now)
local circuit = redis.call("HMGET", circuit_key, "until", "rest", "width")
local is_open, rest, width = circuit[1], tonumber(circuit[2] or 0), tonumber(circuit[3])
local rests, slots = now < rest, redis.call("ZREM", running_key, tenant)
-- How many runs may be in progress now, if that has changed; 0: any number.
local most = closes and most_runs
if width and not rests and handled > 0 then
  -- The downstream accepts work again: allow twice as many at a time, until nobody waits or the cap is reached. Then only the cap
  -- counts, even if the wait queue of a busy pipeline is never empty.
  most = width * 2
  if most >= (most_runs > 0 and most_runs or SLOW_START_ENDS) or redis.call("ZCARD", wait_queue_key) == 0 then
    redis.call("HDEL", circuit_key, "rest", "width")
    most = most_runs
  else
    redis.call("HSET", circuit_key, "width", most)
  end
end
-- While the circuit is open or the pipeline waits, no tenant may take the slot; they are called afterwards.
if rests then
  if closes then
    call_first(due_key, wait_queue_key, rest)
  end
elseif not is_open and most == 0 then
  all_wait_for_their_turn()
elseif not is_open then
  if most then
    -- An overdue run has no slot to pass on: another tenant may have it by now.
    redis.call("ZREMRANGEBYSCORE", running_key, "-inf", "(" .. now)
    slots = most - redis.call("ZCARD", running_key)
  end
  for _ = 1, slots do
    local first = first_waiting(due_key, wait_queue_key)
    if not first then
      break
    end
    redis.call("ZREM", wait_queue_key, first)
    redis.call("ZADD", due_key, now, first)
    -- The slot is reserved, so that no newcomer takes it.
    take_slot(running_key, first, now + republish_ms)
    if not reply[3] then
      reply[2] = reply[2] or false
      reply[3] = first
    end
  end
end
keep_virtual_time(fair_queue_key, virtual_time_key, pipeline)
-- A worker slot becomes free. If too few runs of turns are in its queue, the next tenant gets its turn.
if not reply[3] then
  local next_member = redis.call("ZRANGE", fair_queue_key, 0, 0)[1]
  if next_member and count_in_flight(in_flight_key, false, now) < most_in_flight then
    reply[2], reply[3], reply[4] = reply[2] or false, false, next_member
  end
end
return reply
