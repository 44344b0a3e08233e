-- A worker slot has time for more runs: take their messages, first events before the others. Of as many as may be taken in
-- all, some are kept for continuations where these wait: else a storm of first events would keep them waiting until its end.
-- It ends before a message that is not a run's, or not as a script writes it: that is Celery's.
-- A caller whose reply was lost sends the call again and is given the same messages.
-- KEYS: first next fair_queue taken
-- ARGV: most_first:number most_next:number run_task nonce
-- RETURNS: {firsts, nexts, members}: the messages of each queue as they lay there, the next one first, and for the places
-- that are left who is next among those that wait for their turn

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
-- Behind a message that stays there, whoever is given a turn could not be taken.
local left = redis.call("LLEN", next_key) == 0 and most_next - #firsts - #nexts or 0
local members = left > 0 and redis.call("ZRANGE", fair_queue_key, 0, left - 1) or {}
if #firsts + #nexts > 0 then
  redis.call("HSET", taken_key, "nonce", nonce, "reply", cmsgpack.pack({ firsts, nexts, members }))
  redis.call("PEXPIRE", taken_key, REPEATED_WITHIN_MS)
end
return { firsts, nexts, members }
