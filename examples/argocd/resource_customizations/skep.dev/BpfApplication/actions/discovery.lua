-- What can be done to an application now.
local spec, status = obj.spec or {}, obj.status or {}
local suspended = spec.suspend == true
local state = (status.rollout or {}).state
local waits = state ~= nil and state ~= "Progressing"
return {
  resume = { disabled = not suspended and not waits },
  suspend = { disabled = suspended },
  undo = { disabled = status.previousDigest == nil or state == "RolledBack" },
}
