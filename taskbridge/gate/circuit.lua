-- The circuit of a pipeline, updated at the end of each run; included in `settle`. Its table is in `verification/model/admission.py`.
-- Fields of its hash:
--   failures  failures in a row that blame the downstream or the pipeline
--   first, second  tenants that failed since something was handled
--   says      the first tenant whose failure blamed the downstream or the pipeline
--   agreed    a second tenant's failure did too
--   until     open until this millisecond; then one tenant at a time may probe
--   wait      how long it was opened for
--   probe     the tenant that probes
--   probes    failed probes in a row
--   walk      the records may be at fault, or it has been open for long: probes try others than the first
--   opened, opened_at, closed_at  shown to people
--   rest      the downstream asked the whole pipeline to wait until this millisecond
--   width     how many runs may be in progress after that; doubles with each that handled something, and is
--             deleted when it reaches the cap of the pipeline, or SLOW_START_ENDS if there is none

-- Whether this failure and those before it are not limited to one tenant or one record. That takes at least two tenants.
local function is_general(circuit_key, tenant, blame)
  local seen = redis.call("HMGET", circuit_key, "first", "second", "says", "agreed")
  if not seen[1] then
    redis.call("HSET", circuit_key, "first", tenant)
  elseif seen[1] ~= tenant and not seen[2] then
    redis.call("HSET", circuit_key, "second", tenant)
  end
  local third = seen[1] and seen[2] and seen[1] ~= tenant and seen[2] ~= tenant
  if blame == "record" then
    return third
  end
  local agreed = seen[4]
  if not seen[3] then
    redis.call("HSET", circuit_key, "says", tenant)
  elseif seen[3] ~= tenant and not agreed then
    redis.call("HSET", circuit_key, "agreed", 1)
    agreed = true
  end
  -- A run that blames the pipeline has tried several records, so it counts as CIRCUIT_OPENS_AFTER failures.
  local failures = redis.call("HINCRBY", circuit_key, "failures", blame == "pipeline" and CIRCUIT_OPENS_AFTER or 1)
  return third or agreed and failures >= CIRCUIT_OPENS_AFTER
end

-- `blame` is empty unless the tenant is held for its back-off. Returns whether the circuit closes.
local function judge(circuit_key, due_key, runner_key, wait_queue_key, tenant, blame, handled, now)
  local circuit = redis.call("HMGET", circuit_key, "until", "wait", "probe", "first", "failures")
  local is_open, wait_ms, is_probe = circuit[1], tonumber(circuit[2]), circuit[3] == tenant
  if is_open and handled > 0 and blame == "" then
    redis.call("HDEL", circuit_key, "until", "wait", "probe", "probes", "walk", "first", "second", "failures",
      "says", "agreed")
    redis.call("HSET", circuit_key, "closed_at", now)
    return true
  end
  if handled > 0 and (circuit[4] or circuit[5]) then
    redis.call("HDEL", circuit_key, "first", "second", "failures", "says", "agreed")
  end
  if is_probe then
    redis.call("HDEL", circuit_key, "probe")
  end
  if blame == "" then
    if is_probe then
      call_first(due_key, wait_queue_key, now)
    end
    return
  end

  local probes = 0
  local opens = not is_open and is_general(circuit_key, tenant, blame)
  if opens then
    wait_ms = CIRCUIT_WAIT_MS
    redis.call("HSET", circuit_key, "opened_at", now)
    redis.call("HINCRBY", circuit_key, "opened", 1)
  elseif is_probe then
    wait_ms = math.min(wait_ms * 2, LONGEST_CIRCUIT_WAIT_MS)
    probes = redis.call("HINCRBY", circuit_key, "probes", 1)
  end
  if is_open or opens then
    -- So that the run that closes the circuit calls this tenant too, however long its back-off is by then.
    join_wait_queue(runner_key, wait_queue_key, tenant, now, 1)
  end
  if opens or is_probe then
    redis.call("HSET", circuit_key, "until", now + wait_ms, "wait", wait_ms)
    if blame ~= "downstream" or probes >= WALKS_AFTER then
      redis.call("HSET", circuit_key, "walk", 1)
    end
    call_first(due_key, wait_queue_key, now + wait_ms)
  end
  redis.call("PEXPIRE", circuit_key, DAY_MS)
end
