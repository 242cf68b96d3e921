--- @include prelude
--- @include freeing
-- Removing what has expired from a model, a bounded step at a time.

-- What the list of a slot's segments no longer tells (its key was lost) is given up: the slot loses its name, so that nothing
-- of it is evidence any more.
local function give_up(M, T, slot, partition, replica)
  local lost = tonumber(call('HGET', slot_key(M.root, slot), partition)) or 0
  settle_removal(M, T, {
    partition = partition, slot = slot, replica = replica, prefixes = 0, holdings = lost, hot = 0,
  })
end

local function expire_slot(M, T, slot, partition, expired_at, budget)
  local replica = call('HGET', M.slots, slot)
  if not replica then
    call('ZREM', M.oldest, oldest_member(slot, partition))
    return 0, false
  end
  local P = partition_keys(M.root, partition)
  local removal = open_removal(M, partition, slot, replica, budget)
  local more = drop_oldest(removal, expired_at)
  settle_removal(M, T, removal)
  if call('EXISTS', P.held .. slot) == 0 then give_up(M, T, slot, partition, replica) end
  forget_if_idle(M, slot, replica)
  return removal.holdings, more
end

-- Segments that a dead server should have rebuilt: named once more.
local function recall_rebuilds(M, budget)
  for _, member in ipairs(call('SRANDMEMBER', M.rebuild, 64)) do
    local nul, n = string.find(member, '\0', 1, true), #budget.rebuild
    budget.rebuild[n + 1], budget.rebuild[n + 2] = sub(member, 1, nul - 1), sub(member, nul + 1)
  end
end

-- One step: finish a clear that was left, or take the expired holdings of one slot in one partition. Returns what was
-- removed and whether there may be more.
local function expire_some(M, T, expired_at, budget)
  local retired = call('HRANDFIELD', M.retired)
  if retired then
    local freed = free_slot(M, T, tonumber(retired), budget)
    return freed, true
  end
  local due = call('ZRANGEBYSCORE', M.oldest, '-inf', expired_at, 'LIMIT', 0, 1)
  if #due == 0 then return 0, false end
  local removed = expire_slot(M, T, (read('>I4', due[1])), sub(due[1], 5), expired_at, budget)
  return removed, true
end
