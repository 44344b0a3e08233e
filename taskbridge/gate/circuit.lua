-- The circuit of a pipeline, judged by how each run ends; put before `settle`. Fields of its hash:
--   failures  failures in a row that blame the downstream
--   first, second  tenants that failed since something was handled
--   until     open, until this millisecond; then one tenant at a time may probe
--   wait      how long it was opened for
--   probe     the tenant that probes
--   probes    probes in a row that failed
--   walk      the records may be at fault: probes try others than the first
--   opened, opened_at, closed_at  for people
local OPENS_AFTER = 5
local FIRST_WAIT_MS = 1000
local LONGEST_WAIT_MS = 30000
-- The tenant that failed probes again if no other has come by then.
local LATER_MS = 200

local function open(circuit_key, wait_ms, now)
  redis.call("HSET", circuit_key, "until", now + wait_ms, "wait", wait_ms)
end

local function bring_forward(due_key, line_key, at, count)
  local tenants = redis.call("ZPOPMIN", line_key, count)
  for i = 1, #tenants, 2 do
    redis.call("ZADD", due_key, "XX", at, tenants[i])
  end
  return #tenants > 0
end

-- Whether this failure, beside those before it, is not one tenant's or one record's.
local function is_general(circuit_key, tenant, blame)
  if blame == "pipeline" then
    return true
  end
  if blame == "downstream" and redis.call("HINCRBY", circuit_key, "failures", 1) >= OPENS_AFTER then
    return true
  end
  local seen = redis.call("HMGET", circuit_key, "first", "second")
  if not seen[1] then
    redis.call("HSET", circuit_key, "first", tenant)
  elseif seen[1] ~= tenant and not seen[2] then
    redis.call("HSET", circuit_key, "second", tenant)
  end
  return seen[1] and seen[2] and seen[1] ~= tenant and seen[2] ~= tenant
end

local function judge(circuit_key, due_key, line_key, tenant, blame, handled, now)
  local circuit = redis.call("HMGET", circuit_key, "until", "wait", "probe", "first", "failures")
  local is_open, wait_ms, is_probe = circuit[1], tonumber(circuit[2]), circuit[3] == tenant
  if handled > 0 then
    if is_open or circuit[4] or circuit[5] then
      redis.call("HDEL", circuit_key, "until", "wait", "probe", "probes", "walk", "first", "second", "failures")
    end
    if is_open then
      redis.call("HSET", circuit_key, "closed_at", now)
      bring_forward(due_key, line_key, now, redis.call("ZCARD", line_key))
      is_open = false
    end
  end
  if is_open and is_probe then
    redis.call("HDEL", circuit_key, "probe")
    if blame == "" then
      bring_forward(due_key, line_key, now, 1)
      return
    end
    wait_ms = math.min(wait_ms * 2, LONGEST_WAIT_MS)
    open(circuit_key, wait_ms, now)
    redis.call("HINCRBY", circuit_key, "probes", 1)
    if not bring_forward(due_key, line_key, now + wait_ms, 1) then
      redis.call("ZADD", due_key, "XX", now + wait_ms + LATER_MS, tenant)
    end
  elseif blame ~= "" and not is_open and is_general(circuit_key, tenant, blame) then
    open(circuit_key, FIRST_WAIT_MS, now)
    redis.call("HSET", circuit_key, "opened_at", now)
    redis.call("HINCRBY", circuit_key, "opened", 1)
    if blame ~= "downstream" then
      redis.call("HSET", circuit_key, "walk", 1)
    end
    redis.call("ZADD", due_key, "XX", now + FIRST_WAIT_MS + LATER_MS, tenant)
  end
  if blame ~= "" then
    redis.call("PEXPIRE", circuit_key, DAY_MS)
  end
end
