-- A run message arrived: begin the run, unless the message is late or duplicated, or the tenant has to wait in the queue.
-- USES: wait_queue
-- KEYS: due runner lease circuit running wait_queue fair_queue in_flight in_flight_due
-- ARGV: pipeline tenant token ttl_ms:number republish_ms:number most_runs:number worker nonce now_ms
-- RETURNS: {BEGUN, events, new_events, runs, failures, age_ms, probe, died, traceparent, found, burst} | {POSTPONED} | {REFUSED}

local runner = redis.call("HMGET", runner_key, "state", "token", "events", "swept", "failures", "first",
  "began", "runs", "joined", "died", "reminded", "traceparent", "burst", "nonce", "reply")
local state, current, events, swept, failures, first, last, runs, joined =
  runner[1], runner[2], tonumber(runner[3]), runner[4], runner[5], runner[6], runner[7], runner[8], tonumber(runner[9])
if state == "running" and current == token and runner[14] == nonce then
  -- The reply was lost, and the caller repeats the call.
  return cjson.decode(runner[15])
end
if state ~= "queued" or current ~= token then
  return { REFUSED }
end
redis.call("ZREM", in_flight_key, pipeline .. ":" .. tenant)
redis.call("ZREM", in_flight_due_key, tenant)
if joined then
  -- It may have come here from the wait queue while its message was on its way.
  redis.call("ZREM", fair_queue_key, pipeline .. ":" .. tenant)
end

local circuit = redis.call("HMGET", circuit_key, "until", "probe", "walk", "probes", "rest", "width")
local open_until, holder, walk, probes = tonumber(circuit[1]), circuit[2], circuit[3], tonumber(circuit[4] or 0)
local rest, width = tonumber(circuit[5] or 0), tonumber(circuit[6])
if width and (most_runs == 0 or width < most_runs) then
  most_runs = width
end

local function another_probes()
  local deadline = holder and holder ~= tenant and redis.call("ZSCORE", due_key, holder)
  return deadline and tonumber(deadline) > now
end

local function is_first()
  local head = first_waiting(due_key, wait_queue_key)
  return not head or head == tenant
    or position(joined or now, runs) < tonumber(redis.call("ZSCORE", wait_queue_key, head))
end

-- The tenant's own slot does not count if the others fill the cap, as after the cap was lowered.
local function is_slot_free()
  local own = tonumber(redis.call("ZSCORE", running_key, tenant) or -1) >= now and 1 or 0
  return redis.call("ZCOUNT", running_key, now, "+inf") - own < most_runs
end

local rests = now < rest
local has_slot = not rests and (most_runs == 0 or is_slot_free())
local nobody_probes = open_until and not another_probes()
local may_probe = nobody_probes and now >= open_until and is_first()
if not has_slot or open_until and not may_probe then
  redis.call("ZREM", running_key, tenant)
  if holder == tenant then
    redis.call("HDEL", circuit_key, "probe")
  end
  join_wait_queue(runner_key, wait_queue_key, tenant, joined or now, runs)
  -- Whatever ends a wait calls the tenants in the queue; this deadline is a fallback.
  local wait_ms = math.min(LONGEST_REPUBLISH_MS, math.max(republish_ms, now - (joined or now)))
  redis.call("ZADD", due_key, math.max(now, rest) + wait_ms, tenant)
  if rests then
    call_first(due_key, wait_queue_key, rest)
  elseif has_slot and nobody_probes then
    call_first(due_key, wait_queue_key, math.max(now, open_until))
  end
  return { POSTPONED }
end
local probe = -1
if open_until then
  redis.call("HSET", circuit_key, "probe", tenant)
  -- Without `walk` each probe tries the first record; with it the first, then the 2nd, 3rd, 5th, 9th ...
  local turn = walk and probes % WALK or 0
  probe = turn > 0 and 2 ^ (turn - 1) or 0
end

redis.call("HDEL", runner_key, "delay", "patience", "before", "joined", "lease", "earliest", "reminded", "queue")
-- The count of events is shown to people, so a reminder is subtracted again.
local found = 0
if runner[11] then
  events = events - 1
  found = events > tonumber(swept) and 0 or 1
end
local fields = { "state", "running", "events", events, "swept", events, "began", now, "runs", runs + 1, "worker", worker }
local function set(field, value)
  fields[#fields + 1], fields[#fields + 2] = field, value
end
-- Postgres counts the events of a burst under this name, so that a lost claim loses no event.
local burst = runner[13]
if not burst then
  burst = token
  set("burst", burst)
end
if last then
  set("before", last)
end
-- While a lease lasts, a producer may have notified but not committed: the sweep after its end sees that commit.
local lease_end = tonumber(redis.call("GET", lease_key) or 0)
if lease_end > now then
  set("lease", lease_end)
end
local reply = { BEGUN, events, events - swept, runs + 1, tonumber(failures or 0),
  first and math.max(0, now - first) or -1, probe, runner[10] or "", runner[12] or "", found, burst }
set("nonce", nonce)
set("reply", cjson.encode(reply))
redis.call("HSET", runner_key, unpack(fields))
if joined then
  redis.call("ZREM", wait_queue_key, tenant)
end
if most_runs > 0 then
  redis.call("ZREMRANGEBYSCORE", running_key, "-inf", now)
  take_slot(running_key, tenant, now + ttl_ms)
end
redis.call("ZADD", due_key, now + ttl_ms, tenant)
return reply
