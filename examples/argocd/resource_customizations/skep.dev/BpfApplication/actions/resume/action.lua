-- Lifts a suspension. Of an application that is not suspended it continues the rollout, as skep
-- rollout resume does: it takes an undo back, or begins the next step.
if obj.spec.suspend then
  obj.spec.suspend = nil
  return obj
end
local annotations = obj.metadata.annotations or {}
annotations["skep.dev/rollout-undo"] = nil
if obj.status.rollout.state ~= "RolledBack" then
  annotations["skep.dev/rollout-resume"] = tostring(obj.status.serial)
end
-- An empty table would be taken for a list.
if next(annotations) == nil then annotations = nil end
obj.metadata.annotations = annotations
return obj
