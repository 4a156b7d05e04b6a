-- Argo CD health check for NetIPAllocation, FloatingIPPool and NodeDNSRecordSet, based on their conditions.
-- Installation: docs/guides/argo-cd.md.
local status = obj.status
if status == nil or status.conditions == nil then
  return { status = "Progressing", message = "the controller has not reconciled the object yet" }
end
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the controller has not reconciled the latest generation yet" }
end
local found = {}
for _, condition in ipairs(status.conditions) do
  if condition.status == "True" then
    found[condition.type] = (condition.reason or "") .. ": " .. (condition.message or "")
  end
end
if found.Stalled then
  return { status = "Degraded", message = found.Stalled }
end
if found.Ready then
  return { status = "Healthy", message = found.Ready }
end
return { status = "Progressing", message = found.Reconciling or "none of the conditions Ready, Reconciling and Stalled is True" }
