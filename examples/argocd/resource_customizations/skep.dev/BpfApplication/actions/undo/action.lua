-- Brings the version before back to every node, as skep rollout undo does.
if obj.metadata.annotations == nil then obj.metadata.annotations = {} end
obj.metadata.annotations["skep.dev/rollout-undo"] = tostring(obj.metadata.generation)
return obj
