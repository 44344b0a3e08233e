-- Part of the scripts that know the line: tenants that wait for a place or for the circuit.

local DAY_MS = 86400000
-- So many probes of an open circuit in a row try records further and further ahead; the next tries the first again.
local WALK = 13
-- More milliseconds than any clock shows: added to when a continuation joined the line.
local BEHIND = 100000000000000

-- First events stand before continuations, each in the order in which they joined.
local function place_in_line(joined, runs)
  return tonumber(runs) == 0 and joined or joined + BEHIND
end

-- Hold a run until there is room for it; the caller sets its deadline.
local function stand_in_line(runner_key, line_key, tenant, joined, runs)
  redis.call("HSET", runner_key, "state", "waiting", "held", 1, "joined", joined)
  redis.call("ZADD", line_key, place_in_line(joined, runs), tenant)
  redis.call("PEXPIRE", line_key, DAY_MS)
end

-- The first in line. Who has no deadline any more, because a part of Redis was lost, is struck off: nobody would come.
local function head_of_line(due_key, line_key)
  while true do
    local head = redis.call("ZRANGE", line_key, 0, 0)[1]
    if not head or redis.call("ZSCORE", due_key, head) then
      return head
    end
    redis.call("ZREM", line_key, head)
  end
end

local function call_head(due_key, line_key, at)
  local head = head_of_line(due_key, line_key)
  if head then
    redis.call("ZADD", due_key, at, head)
  end
end

-- A place that is taken, or kept for the head of the line, until `deadline`.
local function take_place(running_key, tenant, deadline)
  redis.call("ZADD", running_key, deadline, tenant)
  redis.call("PEXPIRE", running_key, DAY_MS)
end
