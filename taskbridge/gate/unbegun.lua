-- Part of the scripts that count messages that were published and have not begun.

-- A message was published that counts as lost from `deadline` on.
local function note_queued(queued_key, member, deadline)
  redis.call("ZADD", queued_key, deadline, member)
  redis.call("PEXPIRE", queued_key, DAY_MS)
end

-- Whether a message of this member was published and not begun. One that counts as lost is counted for a second more,
-- since it may be published again.
local function is_queued(queued_key, member, now)
  return tonumber(redis.call("ZSCORE", queued_key, member) or 0) > now - GRACE_MS
end

-- How many messages were published and not begun.
local function queued(queued_key, now)
  redis.call("ZREMRANGEBYSCORE", queued_key, "-inf", now - GRACE_MS)
  return redis.call("ZCARD", queued_key)
end
