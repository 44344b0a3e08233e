-- Part of the scripts that count runs in flight: those that were published, by anything but an event, and have not begun. In one
-- set for all pipelines are those that a turn or a reminder published, and in one for each pipeline those of its deadlines. A score
-- is when the message counts as lost, with BEHIND added where a reminder published it: those have a bound of their own.
-- One that counts as lost is counted for a second more, since it may be published again.

local function add_in_flight(in_flight_key, member, by_reminder, deadline)
  redis.call("ZADD", in_flight_key, by_reminder and deadline + BEHIND or deadline, member)
  redis.call("PEXPIRE", in_flight_key, DAY_MS)
end

-- A message is published again, or still queued: it counts as lost later, and as published by whatever published it first. Returns
-- whether it was in flight.
local function stay_in_flight(in_flight_key, member, deadline, now)
  local score = tonumber(redis.call("ZSCORE", in_flight_key, member) or 0)
  local by_reminder = score >= BEHIND
  local is_in_flight = (by_reminder and score - BEHIND or score) > now - GRACE_MS
  if is_in_flight then
    add_in_flight(in_flight_key, member, by_reminder, deadline)
  end
  return is_in_flight
end

-- How many runs are in flight that a reminder published, or how many others.
local function count_in_flight(in_flight_key, by_reminder, now)
  local lowest = by_reminder and BEHIND or 0
  redis.call("ZREMRANGEBYSCORE", in_flight_key, lowest, lowest + now - GRACE_MS)
  return redis.call("ZCOUNT", in_flight_key, lowest, "(" .. lowest + BEHIND)
end
