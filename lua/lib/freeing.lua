--- @include prelude
--- @include keys
--- @include record
--- @include totals
--- @include members
--- @include removal
-- Taking a retired slot's holdings out of the segments, a bounded number of segments a call.

-- Returns the holdings freed and whether more are left.
local function free_slot(M, T, slot, budget)
  local replica = call('HGET', M.retired, slot)
  local holdings_key = slot_key(M.root, slot)
  local partitions = call('HKEYS', holdings_key)
  local freed = 0
  for _, partition in ipairs(partitions) do
    local removal = open_removal(M, partition, slot, replica, budget, true)
    local more = drop_oldest(removal, NO_FENCE)
    freed = freed + removal.holdings
    settle_removal(M, T, removal)
    if more then return freed, true end
    call('HDEL', holdings_key, partition)
  end
  call('HDEL', M.retired, slot)
  return freed, false
end
