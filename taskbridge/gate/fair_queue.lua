-- Part of the scripts that know the turns. Whoever has more to do than one run gets through waits for the next turn.
-- Pipelines take turns with each other, and the tenants of one in the order in which they came to wait: the score is a
-- start tag, one above the last of the pipeline, or that of who is next if it is higher (start-time fair queueing). Members
-- are `{pipeline}:{tenant}`; a pipeline's name has no colon.

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

-- The last start tag that a script gave. It knows one pipeline, and reads nothing for the others of its tenants.
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

-- Deadlines and start tags of those that came to wait, each followed by its member.
local deadlines, places = {}, {}

-- `why` it waits: it has more to do than one run got through ("turn"), or it was "found" and had no event yet. `...` are
-- further fields of the runner and their values. The caller says `write_fair_queue` and `keep_virtual_time` afterwards.
local function wait_for_turn(runner_key, fair_queue_key, virtual_time_key, pipeline, tenant, us, why, ...)
  redis.call("HSET", runner_key, "state", "waiting", "held", why, ...)
  local at = #deadlines
  deadlines[at + 1], deadlines[at + 2] = text(milliseconds(us) + TURN_DEADLINE_MS), tenant
  places[at + 1], places[at + 2] = string.format("%.0f", next_tag(fair_queue_key, virtual_time_key, pipeline)), pipeline .. ":" .. tenant
end

-- One command for all: one for each would cost as much as what it does. The deadline is for when the set of turns was
-- lost; else it only moves on.
local function write_fair_queue(due_key, fair_queue_key)
  if deadlines[1] then
    redis.call("ZADD", due_key, unpack(deadlines))
    redis.call("ZADD", fair_queue_key, unpack(places))
    deadlines, places = {}, {}
  end
end

-- Called once for all tenants that came to wait in a script: it costs as much as the rest of the script.
local function keep_virtual_time(fair_queue_key, virtual_time_key, pipeline)
  if tag then
    redis.call("HSET", virtual_time_key, pipeline, text(tag))
    redis.call("PEXPIRE", virtual_time_key, DAY_MS)
    redis.call("PEXPIRE", fair_queue_key, DAY_MS)
  end
end
