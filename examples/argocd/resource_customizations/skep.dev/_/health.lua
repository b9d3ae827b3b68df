-- The health of every kind of skep.dev, from its conditions, which follow kstatus.
local health = { status = "Progressing", message = "waiting for the first status" }
local spec, status = obj.spec or {}, obj.status or {}
local ready, reconciling, stalled
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then ready = condition end
  if condition.type == "Reconciling" and condition.status == "True" then reconciling = condition end
  if condition.type == "Stalled" and condition.status == "True" then stalled = condition end
end
if ready == nil then return health end

health.message = ready.message
if status.observedGeneration ~= obj.metadata.generation then
  health.message = "waiting for the status of the newest definition"
elseif spec.suspend and reconciling ~= nil then
  -- It is to be unloaded, and nodes do so.
  health.message = reconciling.message
elseif spec.suspend then
  health.status = "Suspended"
elseif status.rollout ~= nil and status.rollout.state == "Paused" then
  health.status = "Suspended"
elseif stalled ~= nil then
  health.status, health.message = "Degraded", stalled.message
elseif reconciling ~= nil then
  health.message = reconciling.message
elseif ready.status == "True" then
  health.status = "Healthy"
elseif ready.status == "False" then
  health.status = "Degraded"
end
return health
