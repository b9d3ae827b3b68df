-- Lifts a suspension. Of an application that is not suspended it continues the rollout, as skep
-- rollout resume does: it takes an undo back, or begins the next step.
if obj.spec.suspend then
  obj.spec.suspend = nil
  return obj
end
local annotations = obj.metadata.annotations or {}
-- An empty one undoes nothing. If it were taken away, the last one of all would take the object along.
if annotations["skep.dev/rollout-undo"] ~= nil then annotations["skep.dev/rollout-undo"] = "" end
local rollout = obj.status.rollout or {}
if rollout.state ~= "RolledBack" then
  annotations["skep.dev/rollout-resume"] = tostring(obj.status.serial)
end
obj.metadata.annotations = annotations
return obj
