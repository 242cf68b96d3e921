#!lua flags=allow-oom
--[[
Remove blocks of one replica, in every hash scheme.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 replica     replica id
  2 adapter     escaped adapter, or "*" for every adapter
  3 keys        block keys, 8 bytes each, at most 256
  4 fences      runs of (u16 start, u48 ms): a holding goes when its time is at or before its key's fence
  5 cursor      partition to go on after, "" at first
  6 now_us      floor of the version
REPLY
  OK, cursor, holdings removed, n, n * (partition, segment that should be rebuilt), state (lib/totals push_state)
  cursor: "" when done, else the partition to go on after
COST
  O(blocks * partitions of this replica), bounded by 2048 look-ups a call; other replicas' partitions are not visited.
]]
--- @include prelude
--- @include keys
--- @include record
--- @include counts
--- @include totals
--- @include members
--- @include removal
local M = model_keys(KEYS[1])
local replica, adapter, keys, fences, cursor = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now_us = tonumber(ARGV[6])
local MAX_LOOKUPS = 2048

local size = #keys / 8

local function matching_partitions(slot)
  local out = {}
  for _, partition in ipairs(call('HKEYS', slot_key(M.root, slot))) do
    local scheme = scheme_of(partition)
    if partition > cursor and (adapter == '*' or sub(partition, #scheme + 2) == adapter) then
      out[#out + 1] = partition
    end
  end
  table.sort(out)
  return out
end

local function fence_of_each()
  local out = {}
  for p = 1, #fences, 8 do
    local start, fence = read('>I2I6', fences, p)
    local stop = p + 8 <= #fences and (read('>I2', fences, p + 8)) or size
    for k = start + 1, stop do out[k] = fence end
  end
  return out
end

-- What to take from each segment: segment -> { offset -> fence }, and the segments in order of appearance.
local function offsets_by_segment(places, fence)
  local wanted, segments = {}, {}
  for k = 1, size do
    local place = places[k]
    if place then
      local segment, offset = sub(place, 1, 4), (read('>I2', place, 5))
      if not wanted[segment] then
        wanted[segment] = {}
        segments[#segments + 1] = segment
      end
      wanted[segment][offset] = max(fence[k], wanted[segment][offset] or 0)
    end
  end
  return wanted, segments
end

-- Neighbours with the same fence go together: flat from, to, fence, in order.
local function cuts_of(fence_at)
  local offsets, cuts, n = {}, {}, 0
  for offset in pairs(fence_at) do offsets[#offsets + 1] = offset end
  table.sort(offsets)
  for _, offset in ipairs(offsets) do
    local fence = fence_at[offset]
    if n > 0 and cuts[n - 1] == offset and cuts[n] == fence then
      cuts[n - 1] = offset + 1
    else
      cuts[n + 1], cuts[n + 2], cuts[n + 3] = offset, offset + 1, fence
      n = n + 3
    end
  end
  return cuts
end

local function evict_from(partition, slot, fields, fence, budget)
  local removal = open_removal(M, partition, slot, replica, budget)
  local wanted, segments = offsets_by_segment(call('HMGET', removal.P.blocks, unpack(fields)), fence)
  if #segments == 0 then return removal end
  load_records(removal, segments)
  for _, segment in ipairs(segments) do
    if removal.records[segment] then take(removal, segment, cuts_of(wanted[segment])) end
  end
  close_removal(removal)
  return removal
end

refuse_while_moving(M.root)
local T = read_totals(M, now_us)
local slot = slot_of(M, replica)
local removed, budget, next_cursor = 0, open_budget(), ''
if slot and size > 0 then
  local partitions = matching_partitions(slot)
  local fields, fence = {}, fence_of_each()
  for k = 1, size do fields[k] = sub(keys, k * 8 - 7, k * 8) end
  for k, partition in ipairs(partitions) do
    if k > 1 and k * size > MAX_LOOKUPS then
      next_cursor = partitions[k - 1]
      break
    end
    local removal = evict_from(partition, slot, fields, fence, budget)
    removed = removed + removal.holdings
    if removal.holdings > 0 then settle_removal(M, T, removal) end
  end
  if removed > 0 then
    forget_if_idle(M, slot, replica)
    write_totals(M, T)
  end
end
return push_state(push_rebuild({ 'OK', next_cursor, removed }, budget), M, T)
