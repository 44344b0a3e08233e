-- Push the run message if gate and broker are one Redis: claim and publish are then one atomic step. The placeholders are
-- replaced by the message that Celery and kombu made when the script was loaded. It is put at the end of the queue, or at
-- its front (`at_front`).
local function publish(queue_key, pipeline, tenant, token, us, at_front)
  local queue = string.sub(queue_key, {{name_at}})
  local arguments = cjson.encode({ pipeline, tenant, token })
  local id = string.format("%s.%016.0f", token, us)
  local body = "[" .. arguments .. ", {}, " .. {{embed}} .. "]"
  if at_front then
    redis.call("RPUSH", queue_key, {{message}})
  else
    redis.call("LPUSH", queue_key, {{message}})
  end
end
