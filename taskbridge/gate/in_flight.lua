-- Part of the scripts that count runs in flight: runs that were published, other than for an event, and have not begun. One set
-- for all pipelines has those published for a turn or a reminder, and one set per pipeline those of its deadlines. The score is
-- when the message counts as lost, plus BEHIND if a reminder published it: those have their own limit. A lost message is counted
-- for another second, since it may be published again.

local function add_in_flight(in_flight_key, member, by_reminder, deadline)
  redis.call("ZADD", in_flight_key, by_reminder and deadline + BEHIND or deadline, member)
  redis.call("PEXPIRE", in_flight_key, DAY_MS)
end

-- A message is published again, or still queued: it counts as lost later, and keeps its original publisher. Returns whether it
-- was in flight.
local function stay_in_flight(in_flight_key, member, deadline, now)
  local score = tonumber(redis.call("ZSCORE", in_flight_key, member) or 0)
  local by_reminder = score >= BEHIND
  local is_in_flight = (by_reminder and score - BEHIND or score) > now - GRACE_MS
  if is_in_flight then
    add_in_flight(in_flight_key, member, by_reminder, deadline)
  end
  return is_in_flight
end

-- How many runs in flight were published by reminders, or how many by others.
local function count_in_flight(in_flight_key, by_reminder, now)
  local lowest = by_reminder and BEHIND or 0
  redis.call("ZREMRANGEBYSCORE", in_flight_key, lowest, lowest + now - GRACE_MS)
  return redis.call("ZCOUNT", in_flight_key, lowest, "(" .. lowest + BEHIND)
end
