-- A deadline passed: start what is due, publish lost messages again, replace a run that died. `why`: an operator starts a
-- waiting tenant `early`, or it is its `turn`. A runner that lingered ends here. A message that still waits in the queue of
-- first events is not lost, so it is not published again: a storm of them would put as many duplicates into the other queue,
-- ahead of everything that arrives there later.
-- USES: queueing in_flight
-- KEYS: due runner queue first counts fair_queue in_flight in_flight_due
-- ARGV: pipeline tenant republish_ms:number why nonce now_ms
-- RETURNS: {PUBLISHED, token} | {REPUBLISHED, token} | {REISSUED, token} | {POSTPONED} | {ENDED} | {NOT_DUE}
local member = pipeline .. ":" .. tenant

local deadline = redis.call("ZSCORE", due_key, tenant)
local runner = redis.call("HMGET", runner_key, "state", "token", "patience", "held", "events", "swept", "lease",
  "queue")
local state, token, waited_ms, held = runner[1], runner[2], tonumber(runner[3]), runner[4]
local events, swept, lease_end, queue = runner[5], runner[6], tonumber(runner[7]), runner[8]
if state == "queued" and has_issued(nonce, token) then
  return { PUBLISHED, token }
end
local in_turns = redis.call("ZSCORE", fair_queue_key, member)
-- A tenant from the wait queue keeps its hold.
local waits_for_turn = in_turns and held
local is_called = why == "turn" and waits_for_turn or why == "early" and state == "waiting"
local is_past = why ~= "turn" and deadline and tonumber(deadline) <= now
if in_turns and not waits_for_turn then
  redis.call("ZREM", fair_queue_key, member)
end
if not is_past and not is_called then
  return { NOT_DUE }
end
if not state then
  redis.call("ZREM", due_key, tenant)
  return { NOT_DUE }
end
if waits_for_turn and not is_called then
  redis.call("ZADD", due_key, now + TURN_DEADLINE_MS, tenant)
  return { POSTPONED }
end

-- Whether the run's message still waits in the queue of first events: an older one, or itself, is at its head.
local function still_queued()
  local head = queue == "first" and redis.call("LINDEX", first_key, -1)
  local published = head and string.match(head, '"id": "%d+%-%x+%.(%d+)"')
  return published and published <= string.sub(token, 1, 16)
end

-- A deadline before the lease's end is a tick of a pipeline with `sweep_empty_ticks`, which starts a run. A tenant that was
-- paused for a day is deleted: its records are in Postgres, and its next event starts a run that finds the pause.
local is_quiet = not held and events == swept and (not lease_end or lease_end <= now) or held == "paused"
if state == "waiting" and is_quiet and not is_called then
  redis.call("DEL", runner_key)
  redis.call("ZREM", due_key, tenant)
  return { ENDED }
end

local answer, wait_ms = PUBLISHED, republish_ms
if state == "queued" then
  -- The wait does not double: the message may get lost right after this check.
  if still_queued() then
    redis.call("ZADD", due_key, now + wait_ms, tenant)
    stay_in_flight(in_flight_key, member, now + wait_ms, now)
    return { POSTPONED }
  end
  answer, wait_ms = REPUBLISHED, math.min(waited_ms * 2, LONGEST_REPUBLISH_MS)
else
  if state == "running" then
    answer = REISSUED
    -- For the next run: the records that this one delivered may be why it died.
    local worker = redis.call("HGET", runner_key, "worker") or ""
    redis.call("HSET", runner_key, "died", token .. " " .. worker)
    -- For operators: a single frozen process of a worker delays nothing that they would notice.
    redis.call("HSET", counts_key, "replaced_at", now, "replaced_on", worker)
  end
  token = new_token(us, token, nonce)
end
if held then
  redis.call("HDEL", runner_key, "held", "queue")
end
if waits_for_turn then
  redis.call("ZREM", fair_queue_key, member)
end
if answer ~= PUBLISHED then
  redis.call("HINCRBY", counts_key, answer == REISSUED and "replaced" or "republished", 1)
  -- So that a removed pipeline leaves nothing behind.
  redis.call("PEXPIRE", counts_key, MONTH_MS)
end
queue_run(due_key, runner_key, tenant, token, wait_ms, us)
if why == "turn" then
  add_in_flight(in_flight_key, member, false, now + wait_ms)
elseif not stay_in_flight(in_flight_key, member, now + wait_ms, now) then
  add_in_flight(in_flight_due_key, tenant, false, now + wait_ms)
end
publish(queue_key, pipeline, tenant, token, us)
return { answer, token }
