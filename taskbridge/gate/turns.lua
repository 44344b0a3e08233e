-- Part of the scripts that know the turns. Whoever has more to do than one run gets through waits for the next turn, in
-- the order in which all tenants of the deployment, whatever their pipeline, came to wait. Members are
-- `{pipeline}:{tenant}`; a pipeline's name has no colon.

-- A number as Redis is given it. Redis's own way costs as much as a command, and many tenants have the same numbers.
local texts = {}
local function text(number)
  local found = texts[number]
  if not found then
    found = string.format("%.0f", number)
    texts[number] = found
  end
  return found
end

-- The deadline is for when the set of turns was lost; else it only moves on.
-- `why` it waits: it has more to do than one run got through ("turn"), or it was "found" and had no event yet. `...` are
-- further fields of the runner and their values. The caller says `keep_turns` afterwards.
local function wait_for_turn(due_key, runner_key, turns_key, pipeline, tenant, us, why, ...)
  redis.call("HSET", runner_key, "state", "waiting", "held", why, ...)
  redis.call("ZADD", due_key, text(milliseconds(us) + TURN_DEADLINE_MS), tenant)
  redis.call("ZADD", turns_key, us, pipeline .. ":" .. tenant)
end

-- Once for all that came to wait in a script: it costs as much as the rest of it.
local function keep_turns(turns_key)
  redis.call("PEXPIRE", turns_key, DAY_MS)
end

-- A message was published that counts as lost from `deadline` on.
local function note_queued(queued_key, member, deadline)
  redis.call("ZADD", queued_key, deadline, member)
  redis.call("PEXPIRE", queued_key, DAY_MS)
end

-- Whether a message of this one was published and not begun. One that is taken for lost counts for a while, since it may
-- be published again.
local function is_queued(queued_key, member, now)
  return tonumber(redis.call("ZSCORE", queued_key, member) or 0) > now - GRACE_MS
end

-- How many messages were published and not begun.
local function queued(queued_key, now)
  redis.call("ZREMRANGEBYSCORE", queued_key, "-inf", now - GRACE_MS)
  return redis.call("ZCARD", queued_key)
end
