-- A run message arrived: take the runner, unless the message is late or doubled, or the run has to stand in line.
-- KEYS: due runner circuit running line
-- ARGV: tenant token ttl_ms patience_ms longest_ms most_runs now_ms
-- RETURNS: {BEGUN, events, new_events, runs, failures, age_ms, probe} | {POSTPONED} | {REFUSED}
local due_key, runner_key, circuit_key, running_key, line_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local tenant, token, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local patience_ms, longest_ms, most_runs = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = milliseconds(clock_us(ARGV[7]))

local runner = redis.call("HMGET", runner_key, "state", "token", "events", "swept", "failures", "first",
  "began", "runs", "joined")
local state, current, events, swept, failures, first, last, runs, joined =
  runner[1], runner[2], runner[3], runner[4], runner[5], runner[6], runner[7], runner[8], tonumber(runner[9])
if state ~= "queued" or current ~= token then
  return { REFUSED }
end

-- Whoever ends a wait brings the tenants in line forward, so this deadline is for when nobody did. The first in line
-- behind an open circuit is the next to probe it.
local function postpone(probes_at)
  local wait_ms = math.min(longest_ms, math.max(patience_ms, now - (joined or now)))
  if probes_at and probes_at > now and redis.call("ZCARD", line_key) == 0 then
    wait_ms = probes_at - now
  end
  stand_in_line(runner_key, line_key, tenant, joined or now, runs)
  redis.call("ZADD", due_key, now + wait_ms, tenant)
  return { POSTPONED }
end

if most_runs > 0 and not redis.call("ZSCORE", running_key, tenant)
  and redis.call("ZCOUNT", running_key, now, "+inf") >= most_runs then
  return postpone()
end
local probe = -1
local circuit = redis.call("HMGET", circuit_key, "until", "probe", "walk", "probes")
local open_until, holder = tonumber(circuit[1]), circuit[2]
if open_until then
  local holder_deadline = holder and holder ~= tenant and redis.call("ZSCORE", due_key, holder)
  if now < open_until or (holder_deadline and tonumber(holder_deadline) > now) then
    redis.call("ZREM", running_key, tenant)
    return postpone(open_until)
  end
  redis.call("HSET", circuit_key, "probe", tenant)
  probe = circuit[3] and (circuit[4] or 0) % WALK or 0
end

redis.call("HSET", runner_key, "state", "running", "swept", events, "began", now)
redis.call("HDEL", runner_key, "delay", "patience", "before", "joined")
if last then
  redis.call("HSET", runner_key, "before", last)
end
if joined then
  redis.call("ZREM", line_key, tenant)
end
if most_runs > 0 then
  redis.call("ZREMRANGEBYSCORE", running_key, "-inf", now)
  redis.call("ZADD", running_key, now + ttl_ms, tenant)
  redis.call("PEXPIRE", running_key, DAY_MS)
end
redis.call("ZADD", due_key, now + ttl_ms, tenant)
runs = redis.call("HINCRBY", runner_key, "runs", 1)
return { BEGUN, tonumber(events), events - swept, runs, tonumber(failures or 0), now - first, probe }
