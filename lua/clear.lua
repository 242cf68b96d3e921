#!lua flags=allow-oom
--[[
Remove what a replica holds in a model, in all schemes and adapters, and its statistics row.

Without a fence, or with one that is not older than anything the replica reported, the slot is retired: invisible at once, in
one step; "free" then takes its holdings out of the segments. With an older fence the holdings at or before it
are taken out here, in bounded steps.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 replica     replica id
  2 fence       ms, or "" for everything
  3 now_us      floor of the version
REPLY
  RETIRED, holdings to be freed, state (lib/totals push_state)
  OK, holdings removed, n, n * (partition, segment that should be rebuilt), state
  MORE, holdings removed, n, n * (partition, segment that should be rebuilt), state      call again
COST
  RETIRED: O(partitions of the replica). OK and MORE: at most 64 segments and some 1536 unmapped blocks a call.
]]
--- @include prelude
--- @include keys
--- @include record
--- @include counts
--- @include totals
--- @include members
--- @include removal
local M = model_keys(KEYS[1])
local replica, fence, now_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function newest_report(partitions)
  local newest = 0
  for _, partition in ipairs(partitions) do
    newest = max(newest, tonumber(call('ZSCORE', (scope_keys(M.root, scheme_of(partition))), replica)) or 0)
  end
  return newest
end

local function drop_stats()
  local row = call('HGET', M.stats, replica)
  if not row then return false end
  local _, reported_ms = read('>I8I8', row)
  if fence and reported_ms > fence then return false end
  return call('HDEL', M.stats, replica) == 1
end

local function retire(T, slot, partitions)
  local holdings = 0
  for _, partition in ipairs(partitions) do
    leave_scope(M, T, scheme_of(partition), slot, replica)
    call('ZREM', M.oldest, oldest_member(slot, partition))
    holdings = holdings + (tonumber(call('HGET', slot_key(M.root, slot), partition)) or 0)
  end
  call('HDEL', M.replicas, replica)
  call('HDEL', M.slots, slot)
  call('HSET', M.retired, slot, replica)
  call('PEXPIRE', M.retired, max(call('PTTL', M.totals), call('PTTL', M.retired), 1))
  return holdings
end

local function drop_fenced(T, slot, partitions)
  local removed, budget, more = 0, open_budget(), false
  for _, partition in ipairs(partitions) do
    local removal = open_removal(M, partition, slot, replica, budget)
    more = drop_oldest(removal, fence) or more
    removed = removed + removal.holdings
    settle_removal(M, T, removal)
  end
  forget_if_idle(M, slot, replica)
  return removed, budget, more
end

refuse_while_moving(M.root)
local T = read_totals(M, now_us)
local slot = slot_of(M, replica)
local partitions = slot and call('HKEYS', slot_key(M.root, slot)) or {}
local reply
local dropped = drop_stats()
if not slot then
  reply = { 'OK', 0, 0 }
elseif not fence or fence >= newest_report(partitions) then
  reply = { 'RETIRED', retire(T, slot, partitions) }
else
  local removed, budget, more = drop_fenced(T, slot, partitions)
  reply = push_rebuild({ more and 'MORE' or 'OK', removed }, budget)
end
if slot or dropped then write_totals(M, T) end
return push_state(reply, M, T)
