-- Part of the scripts that queue runs.

-- The token of a new run, above `floor`: another token, or false. 16 digits of microseconds order tokens as text until the year 2286.
local function new_token(us, floor, nonce)
  if floor then
    us = math.max(us, tonumber(string.sub(floor, 1, 16)) + 1)
  end
  return string.format("%016.0f-%s", us, nonce)
end

-- Whether the call with this nonce issued the token: its reply was lost, and the caller repeats it.
local function has_issued(nonce, token)
  return token and string.sub(token, 18) == nonce
end

-- Queue a run. Its deadline passes after `republish_ms` (the field `patience`), and then after twice as long each time. `...` are
-- further fields of the runner and their values.
local function queue_run(due_key, runner_key, tenant, token, republish_ms, us, ...)
  redis.call("HSET", runner_key, "state", "queued", "token", token, "patience", republish_ms, ...)
  redis.call("ZADD", due_key, milliseconds(us) + republish_ms, tenant)
end
