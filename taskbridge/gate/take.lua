-- A worker slot has time for more runs: take their messages, first events before the others. Some of the total are reserved for
-- continuations if these wait: otherwise a storm of first events would keep them waiting until it ends. It stops at a message
-- that is not a run, or that no script has written: Celery handles that one. A caller whose reply was lost repeats the call and
-- gets the same messages.
-- KEYS: first next fair_queue taken
-- ARGV: most_first:number most_next:number run_task nonce
-- RETURNS: {firsts, nexts, members}: the messages of each queue in order, and the next members of the fair queue for the
-- remaining room

if redis.call("HGET", taken_key, "nonce") == nonce then
  return cmsgpack.unpack(redis.call("HGET", taken_key, "reply"))
end

local function take(queue_key, most)
  local taken = {}
  while #taken < most do
    local message = redis.call("RPOP", queue_key)
    if not message then
      break
    end
    if not string.find(message, run_task, 1, true) or string.find(message, '"body_encoding"', 1, true) then
      redis.call("RPUSH", queue_key, message)
      break
    end
    taken[#taken + 1] = message
  end
  return taken
end

local kept = math.max(0, math.min(redis.call("LLEN", next_key), math.floor(most_next / (FIRSTS_IN_A_ROW + 1))))
local firsts = take(first_key, most_first - kept)
local nexts = take(next_key, most_next - #firsts)
-- A run published for a turn could not be taken behind a message that stays in the queue.
local left = redis.call("LLEN", next_key) == 0 and most_next - #firsts - #nexts or 0
local members = left > 0 and redis.call("ZRANGE", fair_queue_key, 0, left - 1) or {}
if #firsts + #nexts > 0 then
  redis.call("HSET", taken_key, "nonce", nonce, "reply", cmsgpack.pack({ firsts, nexts, members }))
  redis.call("PEXPIRE", taken_key, REPEATED_WITHIN_MS)
end
return { firsts, nexts, members }
