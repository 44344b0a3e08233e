-- Part of the scripts that use the wait queue: tenants that wait for a run slot or for the circuit. Its table, and that of the
-- slots, are in `verification/model/admission.py`.

-- First events come before continuations, each in the order in which they joined.
local function position(joined, runs)
  return tonumber(runs) == 0 and joined or joined + BEHIND
end

-- Hold a run until it may begin; the caller sets its deadline.
local function join_wait_queue(runner_key, wait_queue_key, tenant, joined, runs)
  redis.call("HSET", runner_key, "state", "waiting", "held", 1, "joined", joined)
  redis.call("ZADD", wait_queue_key, position(joined, runs), tenant)
  redis.call("PEXPIRE", wait_queue_key, DAY_MS)
end

-- The first in the queue. A tenant whose deadline was lost with a part of Redis is removed: no run would come for it.
local function first_waiting(due_key, wait_queue_key)
  while true do
    local first = redis.call("ZRANGE", wait_queue_key, 0, 0)[1]
    if not first or redis.call("ZSCORE", due_key, first) then
      return first
    end
    redis.call("ZREM", wait_queue_key, first)
  end
end

local function call_first(due_key, wait_queue_key, at)
  local first = first_waiting(due_key, wait_queue_key)
  if first then
    redis.call("ZADD", due_key, at, first)
  end
end

-- Take a run slot, or reserve it for the first in the queue, until `deadline`.
local function take_slot(running_key, tenant, deadline)
  redis.call("ZADD", running_key, deadline, tenant)
  redis.call("PEXPIRE", running_key, DAY_MS)
end
