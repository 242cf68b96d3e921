--- @include prelude
--- @include keys
--- @include totals
-- Slots stand for replicas inside a model; a scope's members are the replicas that serve it.

local function slot_of(M, replica)
  return tonumber(call('HGET', M.replicas, replica))
end

local function adopt(M, T, replica)
  T.slot = T.slot + 1
  call('HSET', M.replicas, replica, T.slot)
  call('HSET', M.slots, T.slot, replica)
  return T.slot
end

-- A slot that holds nothing is forgotten; its number is not used again while anything of the model is left.
local function forget_if_idle(M, slot, replica)
  if call('EXISTS', slot_key(M.root, slot)) == 0 then
    call('HDEL', M.replicas, replica)
    call('HDEL', M.slots, slot)
  end
end

local function oldest_member(slot, partition)
  return write('>I4', slot) .. partition
end

-- Keep M:oldest at the oldest report of a slot in a partition.
local function settle_oldest(M, partition, slot)
  local held = partition_keys(M.root, partition).held .. slot
  local oldest = call('ZRANGE', held, 0, 0, 'WITHSCORES')
  if oldest[2] then
    call('ZADD', M.oldest, oldest[2], oldest_member(slot, partition))
  else
    call('ZREM', M.oldest, oldest_member(slot, partition))
  end
end

local function add_holdings(M, partition, slot, delta)
  local key = slot_key(M.root, slot)
  if call('HINCRBY', key, partition, delta) <= 0 then call('HDEL', key, partition) end
end

-- A scope's membership changed: servers that know the members by this version ask for them again. No two changes share
-- a version of the model.
local function renumber_scope(T, count)
  call('HSET', count, 'v', number(T.next_version))
end

local function leave_scope(M, T, scheme, slot, replica)
  local serving, count = scope_keys(M.root, scheme)
  call('HDEL', count, slot)
  call('ZREM', serving, replica)
  if call('ZCARD', serving) == 0 then call('DEL', count) else renumber_scope(T, count) end
end

local function enter_scope(M, T, scheme, replica, reported_ms)
  local serving, count = scope_keys(M.root, scheme)
  if call('ZADD', serving, 'GT', reported_ms, replica) == 1 then renumber_scope(T, count) end
end

-- Count a slot's holdings in a scope; at zero its replica serves it no longer.
local function count_scope(M, T, scheme, slot, replica, delta)
  local _, count = scope_keys(M.root, scheme)
  if call('HINCRBY', count, slot, delta) <= 0 then leave_scope(M, T, scheme, slot, replica) end
end

-- Book a removal everywhere but in the segments themselves. A retired slot serves nothing and is due for nothing any more.
local function settle_removal(M, T, removal)
  local partition, slot = removal.partition, removal.slot
  add_to_totals(M, T, partition, -removal.prefixes, -removal.holdings)
  T.hot = T.hot + removal.hot
  if not removal.retired then settle_oldest(M, partition, slot) end
  if removal.holdings == 0 then return end
  add_holdings(M, partition, slot, -removal.holdings)
  if not removal.retired then
    count_scope(M, T, scheme_of(partition), slot, removal.replica, -removal.holdings)
  end
end
