-- Part of the scripts that use the fair queue. A tenant with more work than fits into one run waits for its next turn. Pipelines
-- take turns with each other, and the tenants of one pipeline in the order in which they came: the score is a start tag, which
-- is one above the last tag of the pipeline, or the tag of the first in the queue if that is higher (start-time fair queueing).
-- Members are `{pipeline}:{tenant}`; a pipeline's name has no colon.

-- Format a number for Redis. Redis's own conversion costs as much as a command, and many tenants have the same numbers.
local texts = {}
local function text(number)
  local formatted = texts[number]
  if not formatted then
    formatted = string.format("%.0f", number)
    texts[number] = formatted
  end
  return formatted
end

-- The last start tag that this script call assigned. A call is for one pipeline, so only its first tenant reads from Redis.
local tag

local function next_tag(fair_queue_key, virtual_time_key, pipeline)
  if tag then
    tag = tag + 1
    return tag
  end
  local head = tonumber(redis.call("ZRANGE", fair_queue_key, 0, 0, "WITHSCORES")[2])
  if not head then
    redis.call("DEL", virtual_time_key)
  end
  tag = math.max(head or 0, tonumber(redis.call("HGET", virtual_time_key, pipeline) or 0) + 1)
  return tag
end

-- Deadlines and start tags of the tenants that came to wait, each followed by its member.
local deadlines, tags = {}, {}

-- `why` it waits: it has more work than fits into one run ("turn"), or it was "found" and has had no event yet. `...` are further
-- fields of the runner and their values. The caller calls `write_fair_queue` and `keep_virtual_time` afterwards.
local function wait_for_turn(runner_key, fair_queue_key, virtual_time_key, pipeline, tenant, us, why, ...)
  redis.call("HSET", runner_key, "state", "waiting", "held", why, ...)
  local at = #deadlines
  deadlines[at + 1], deadlines[at + 2] = text(milliseconds(us) + TURN_DEADLINE_MS), tenant
  tags[at + 1], tags[at + 2] = string.format("%.0f", next_tag(fair_queue_key, virtual_time_key, pipeline)), pipeline .. ":" .. tenant
end

-- One command for all tenants: the overhead of a command is as much as its work. The deadline matters only if the fair queue is
-- lost; otherwise it is postponed.
local function write_fair_queue(due_key, fair_queue_key)
  if deadlines[1] then
    redis.call("ZADD", due_key, unpack(deadlines))
    redis.call("ZADD", fair_queue_key, unpack(tags))
    deadlines, tags = {}, {}
  end
end

-- Called once per script call, for all tenants that came to wait: it costs as much as the rest of the script.
local function keep_virtual_time(fair_queue_key, virtual_time_key, pipeline)
  if tag then
    redis.call("HSET", virtual_time_key, pipeline, text(tag))
    redis.call("PEXPIRE", virtual_time_key, DAY_MS)
    redis.call("PEXPIRE", fair_queue_key, DAY_MS)
  end
end
