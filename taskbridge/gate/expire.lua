-- A deadline passed: start what is due, publish again what got lost, replace a runner that died. With `early` a tenant
-- that waits is started before its deadline; with `together` the caller publishes.
-- KEYS: due runner queue counts
-- ARGV: pipeline tenant republish_ms longest_ms early together nonce now_ms
-- RETURNS: {PUBLISHED, token} | {REPUBLISHED, token} | {REISSUED, token} | {NOT_DUE}
local due_key, runner_key, queue_key, counts_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pipeline, tenant, republish_ms, longest_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local early, together, nonce, us = ARGV[5] == "1", ARGV[6] == "1", ARGV[7], clock_us(ARGV[8])

local deadline = redis.call("ZSCORE", due_key, tenant)
local runner = redis.call("HMGET", runner_key, "state", "token", "patience", "held")
local state, token, patience, held = runner[1], runner[2], tonumber(runner[3]), runner[4]
local is_past = deadline and tonumber(deadline) <= milliseconds(us)
if not is_past and not (early and state == "waiting") then
  return { NOT_DUE }
end
if not state then
  redis.call("ZREM", due_key, tenant)
  return { NOT_DUE }
end

local answer, wait_ms = PUBLISHED, republish_ms
if state == "queued" then
  answer, wait_ms = REPUBLISHED, math.min(patience * 2, longest_ms)
else
  token = new_token(us, token, nonce)
  if state == "running" then
    answer = REISSUED
  end
end
if held then
  redis.call("HDEL", runner_key, "held")
end
if answer ~= PUBLISHED then
  redis.call("HINCRBY", counts_key, answer == REISSUED and "replaced" or "republished", 1)
  -- 30 days, so that a pipeline that is no more leaves nothing.
  redis.call("PEXPIRE", counts_key, 2592000000)
end
queue_run(due_key, runner_key, tenant, token, wait_ms, us)
if not together then
  publish(queue_key, pipeline, tenant, token, us)
end
return { answer, token }
