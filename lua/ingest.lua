#!lua
--[[
Store the blocks that one replica reports in one partition.

KEYS
  1 totals       <model>:totals; the model's other keys are derived from it
ARGV
  1 partition    escaped "<scheme>/<adapter>"
  2 replica      replica id
  3 reported_ms  time of the holdings
  4 keys         distinct block keys in placing order, 8 bytes each, at most 512
  5 after        block key before the first one in the same chain, or ""
  6 tiers        runs of (u16 start, u8 tier)
  7 counts       runs of (u16 start, i32 first, i32 step)
  8 breaks       u16 each: indexes at which an unrelated run begins
  9 key_ttl_ms   backstop expiry of the keys
 10 now_us       floor of the version
REPLY
  OK, holdings added, prefixes added, n, n * segment that should be rebuilt, state (lib/totals push_state)
COST
  O(blocks + intervals of the segments touched).
]]
--- @include prelude
--- @include keys
--- @include record
--- @include counts
--- @include totals
--- @include members
local M = model_keys(KEYS[1])
local partition, replica, reported_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local keys, after, tiers, counts, breaks = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local key_ttl_ms, now_us = tonumber(ARGV[9]), tonumber(ARGV[10])

local P = partition_keys(M.root, partition)
local size = #keys / 8
local GUARD = string.rep('-', 65) -- a field this long makes a hash a table from the start

local records, fresh = {}, {} -- segment -> record; segment -> true where the record was made by this call
local fields = { after } -- every key, the one at index k of the batch at k + 2
local is_open -- whether the partition has its guard

-- Where each key sits; a place whose segment is lost or shorter is no place. Index 1 is `after`.
local function find_places()
  for k = 1, size do fields[k + 1] = sub(keys, k * 8 - 7, k * 8) end
  fields[size + 2] = GUARD
  local found = call('HMGET', P.blocks, unpack(fields))
  is_open = found[size + 2]
  local wanted, seen = {}, {}
  for k = 1, size + 1 do
    local segment = found[k] and sub(found[k], 1, 4)
    if segment and not seen[segment] then
      seen[segment] = true
      wanted[#wanted + 1] = segment
    end
  end
  if #wanted > 0 then
    local values = call('HMGET', P.segments, unpack(wanted))
    for k = 1, #wanted do records[wanted[k]] = values[k] or nil end
  end
  return found
end

local function place_of(found, k)
  local place = found[k + 1]
  if not place then return nil end
  local segment, offset = sub(place, 1, 4), (read('>I2', place, 5))
  local r = records[segment]
  if r and offset < (head_of(r)) then return segment, offset end
end

local function break_set()
  local set = {}
  for p = 1, #breaks, 2 do set[(read('>I2', breaks, p))] = true end
  return set
end

-- Cut the batch into groups of neighbours: known ones that sit side by side in a segment, and unknown ones.
-- A group is { first = index in the batch, size, segment, from }, an unknown one { first, size, previous group }.
local function group(found)
  local groups, is_break = {}, break_set()
  local last
  if after ~= '' then
    local segment, offset = place_of(found, 0)
    if segment then last = { first = 0, size = 0, segment = segment, from = offset + 1 } end
  end
  for k = 0, size - 1 do
    local segment, offset = place_of(found, k + 1)
    local open = last and not is_break[k]
    if segment then
      if not (last and last.segment == segment and last.from + last.size == offset) then
        last = { first = k, size = 0, segment = segment, from = offset }
      end
    elseif not (open and not last.segment) then
      last = { first = k, size = 0, previous = open and last or nil }
    end
    last.size = last.size + 1
    if last.size == 1 then groups[#groups + 1] = last end
    if last.size == 1 then last.first = k end
  end
  return groups
end

local new_blocks, new_hashes = {}, {} -- HSET arguments

-- Give the group's blocks a place: behind the previous group if that ends its segment, else in a new one.
local function settle_group(T, g)
  local hashes = sub(keys, g.first * 8 + 1, (g.first + g.size) * 8)
  local previous = g.previous
  local room = previous and records[previous.segment]
  local length = room and (head_of(room))
  local before = ''
  if room and length == previous.from + previous.size and length + g.size <= MAX_SEGMENT_BLOCKS then
    before = new_hashes[previous.segment] or call('HGET', P.hashes, previous.segment)
  end
  if before and before ~= '' then
    g.segment, g.from = previous.segment, length
    records[g.segment] = with_head(room, length + g.size, select(2, head_of(room)))
  else
    T.segment = T.segment + 1
    g.segment, g.from, before = write('>I4', T.segment), 0, ''
    records[g.segment], fresh[g.segment] = write('>I2I2', g.size, 0), true
  end
  new_hashes[g.segment] = before .. hashes
  local n, number_now = #new_blocks, read('>I4', g.segment)
  for k = 0, g.size - 1 do
    new_blocks[n + 1], new_blocks[n + 2] = fields[g.first + k + 2], write('>I4I2', number_now, g.from + k)
    n = n + 2
  end
end

local oldest = {} -- segment -> the slot's oldest time in it

local function cover_group(g, slot)
  local r = records[g.segment]
  local added = uncovered(r, g.from, g.from + g.size)
  local length, held = head_of(r)
  r = with_head(r, length, held + added)
  local had, n = 0, #tiers
  for p = 1, n, 3 do
    local start, tier = read('>I2B', tiers, p)
    local stop = p + 3 <= n and (read('>I2', tiers, p + 3)) or size
    local a, b = max(start, g.first), min(stop, g.first + g.size)
    if a < b then
      local overlap
      r, overlap, oldest[g.segment] = cover(r, slot, g.from + a - g.first, g.from + b - g.first, reported_ms, tier)
      had = had + overlap
    end
  end
  records[g.segment] = r
  return g.size - had, added
end

local stored_counts = {} -- counts field -> value

local function load_counts(groups, slot)
  local fields = {}
  for _, g in ipairs(groups) do
    if not fresh[g.segment] then fields[#fields + 1] = counts_field(read('>I4', g.segment), slot) end
  end
  if #fields == 0 then return end
  local values = call('HMGET', P.counts, unpack(fields))
  for k = 1, #fields do stored_counts[fields[k]] = values[k] or nil end
end

local function count_group(g, slot)
  local field = counts_field(read('>I4', g.segment), slot)
  local old, length = stored_counts[field] or '', (head_of(records[g.segment]))
  local runs, stop = {}, g.from + g.size
  copy_counts(runs, old, length, 0, g.from, 0)
  for p = 1, #counts, RUN_WIDTH do
    local start, first, step = read(RUN, counts, p)
    local next_start = p + RUN_WIDTH <= #counts and (read('>I2', counts, p + RUN_WIDTH)) or size
    local a, b = max(start, g.first), min(next_start, g.first + g.size)
    if a < b then push_counts(runs, g.from + a - g.first, first + (a - start) * step, step, b - a) end
  end
  copy_counts(runs, old, length, stop, length, 0)
  stored_counts[field] = encode_counts(runs)
end

local function flat(map)
  local out = {}
  for field, value in pairs(map) do
    out[#out + 1] = field
    out[#out + 1] = value
  end
  return out
end

local function put(key, pairs_flat)
  for i = 1, #pairs_flat, 4000 do
    call('HSET', key, unpack(pairs_flat, i, min(i + 3999, #pairs_flat)))
  end
end

-- Give the hashes of a new partition their guard, so that none of them is ever a list that is scanned.
local function open_partition()
  if is_open then return end
  call('SADD', M.partitions, partition)
  for _, key in ipairs({ P.blocks, P.segments, P.hashes, P.counts }) do call('HSET', key, GUARD, '') end
end

local function write_segments(groups, slot)
  local held, changed = {}, {}
  for _, g in ipairs(groups) do changed[g.segment] = records[g.segment] end
  for segment, time in pairs(oldest) do
    held[#held + 1] = time
    held[#held + 1] = segment
  end
  put(P.blocks, new_blocks)
  put(P.hashes, flat(new_hashes))
  put(P.segments, flat(changed))
  put(P.counts, flat(stored_counts))
  call('ZADD', P.held .. slot, unpack(held))
  local rebuild = {}
  for segment, r in pairs(changed) do
    if needs_rebuild(r) then rebuild[#rebuild + 1] = segment end
  end
  return rebuild
end

local function renew_keys(slot)
  if call('PTTL', P.held .. slot) > key_ttl_ms * 7 / 8 then return end
  local serving, count = scope_keys(M.root, scheme_of(partition))
  local renewed = {
    M.totals, M.replicas, M.slots, M.stats, M.partitions, M.oldest, M.retired, slot_key(M.root, slot), serving, count,
    P.blocks, P.segments, P.hashes, P.counts, P.held .. slot,
  }
  for _, key in ipairs(renewed) do call('PEXPIRE', key, key_ttl_ms) end
end

refuse_while_moving(M.root)
local T = read_totals(M)
local slot = slot_of(M, replica)
local scheme = scheme_of(partition)
local groups = group(find_places())
slot = slot or adopt(M, T, replica)
for _, g in ipairs(groups) do
  if not g.segment then settle_group(T, g) end
end
load_counts(groups, slot)
local holdings, prefixes = 0, 0
for _, g in ipairs(groups) do
  local own, all = cover_group(g, slot)
  count_group(g, slot)
  holdings, prefixes = holdings + own, prefixes + all
end

open_partition()
local rebuild = write_segments(groups, slot)
local serving = scope_keys(M.root, scheme)
call('ZADD', serving, 'GT', reported_ms, replica)
if holdings > 0 then
  count_scope(M, scheme, slot, replica, holdings)
  add_holdings(M, partition, slot, holdings)
end
settle_oldest(M, partition, slot)
add_to_totals(M, T, partition, prefixes, holdings)
T.newest = max(T.newest, reported_ms)
write_totals(M, T, now_us)
renew_keys(slot)
local reply = { 'OK', holdings, prefixes, #rebuild }
for _, segment in ipairs(rebuild) do reply[#reply + 1] = segment end
return push_state(reply, M, T)
