-- Health of an object of kruise-rs, by its conditions Ready, Reconciling and Stalled. No library of Lua is used.
local held = {
  Paused = true, Partition = true, OnDelete = true, Selector = true, NotUpdate = true, NotUpgradable = true,
  MaxUnavailable = true, NoParallelism = true, PartitionReached = true,
}
if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "it is being deleted" }
end
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the controller has not seen this spec yet" }
end
for _, condition in ipairs(status.conditions or {}) do
  local health = ({ Ready = "Healthy", Reconciling = "Progressing", Stalled = "Degraded" })[condition.type]
  if health ~= nil and condition.status == "True" then
    if held[condition.reason] then
      health = "Suspended"
    end
    return { status = health, message = condition.reason .. ": " .. (condition.message or "") }
  end
end
return { status = "Progressing", message = "it has no condition yet" }
