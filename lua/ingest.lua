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
  9 skip         blocks of this batch that an earlier call took
 10 lfu          1: the tenant counts credits, so that a stretch notes when it began
 11 key_ttl_ms   backstop expiry of the keys
 12 now_us       floor of the version
REPLY
  OK, blocks taken, holdings added, prefixes added, n, n * segment that should be rebuilt, state (lib/totals push_state)
      blocks taken: skip plus what this call took; when that is not all of them, call again with it
COST
  O(blocks + intervals of the segments touched), at most 160 stretches of neighbouring blocks a call.
]]
--- @include prelude
--- @include keys
--- @include record
--- @include counts
--- @include totals
--- @include members
--- @include order
local M = model_keys(KEYS[1])
local partition, replica, reported_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local keys, after, tiers, counts, breaks = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local skip, lfu, key_ttl_ms, now_us = tonumber(ARGV[9]), ARGV[10] == '1', tonumber(ARGV[11]), tonumber(ARGV[12])
local MAX_GROUPS = 160

local P = partition_keys(M.root, partition)
local size = #keys / 8
local GUARD = string.rep('-', 65) -- a field this long makes a hash a table from the start

local records, fresh = {}, {} -- segment -> record; segment -> true where the record was made by this call
local old_length = {} -- segment -> its length before this call
local fields = {} -- the keys to look for: the block before the first, then the one at index k of the batch at k + 2 - skip
local is_open -- whether the partition has its guard

-- Where each key sits; a place whose segment is lost or shorter is no place.
local function find_places()
  fields[1] = skip == 0 and after or sub(keys, skip * 8 - 7, skip * 8)
  for k = skip + 1, size do fields[k + 1 - skip] = sub(keys, k * 8 - 7, k * 8) end
  fields[#fields + 1] = GUARD
  local found = call('HMGET', P.blocks, unpack(fields))
  is_open = found[#fields]
  local wanted, seen = {}, {}
  for k = 1, #fields - 1 do
    local segment = found[k] and sub(found[k], 1, 4)
    if segment and not seen[segment] then
      seen[segment] = true
      wanted[#wanted + 1] = segment
    end
  end
  if #wanted > 0 then
    local values = call('HMGET', P.segments, unpack(wanted))
    for k = 1, #wanted do
      records[wanted[k]] = values[k] or nil
      old_length[wanted[k]] = values[k] and (head_of(values[k]))
    end
  end
  return found
end

local function place_of(place)
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
-- A group is { first = index in the batch, size, segment, from }, an unknown one { first, size, previous group }. Returns the
-- groups and the index of the first block that is in none, for a later call.
local function group(found)
  local groups, is_break, last = {}, break_set(), nil
  local segment, offset = place_of(found[1])
  if segment then last = { first = 0, size = 0, segment = segment, from = offset + 1 } end
  for k = skip, size - 1 do
    segment, offset = place_of(found[k + 2 - skip])
    local open = last and not is_break[k]
    if segment then
      if not (last and last.segment == segment and last.from + last.size == offset) then
        last = { first = k, size = 0, segment = segment, from = offset }
      end
    elseif not (open and not last.segment) then
      last = { first = k, size = 0, previous = open and last or nil }
    end
    if last.size == 0 then
      if #groups == MAX_GROUPS then return groups, k end
      groups[#groups + 1], last.first = last, k
    end
    last.size = last.size + 1
  end
  return groups, size
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
    new_blocks[n + 1], new_blocks[n + 2] = fields[g.first + k + 2 - skip], write('>I4I2', number_now, g.from + k)
    n = n + 2
  end
end

-- What each segment is to say: segment -> { pieces = flat from, to, time, tier; runs = flat start, first, step, size }.
local news, changed = {}, {}

local function news_of(segment)
  if not news[segment] then
    news[segment] = { pieces = {}, runs = {} }
    changed[#changed + 1] = segment
  end
  return news[segment]
end

-- Spread a run-length coded column over the groups, in one pass: emit(group's news, from, to, run, place in the run).
local function spread(groups, column, format, width, emit)
  local p, n = 1, #column
  local run = { read(format, column, p) }
  local stop = p + width <= n and (read('>I2', column, p + width)) or size
  for _, g in ipairs(groups) do
    local at, last = g.first, g.first + g.size
    while at < last do
      while stop <= at do
        p = p + width
        run = { read(format, column, p) }
        stop = p + width <= n and (read('>I2', column, p + width)) or size
      end
      local till = min(last, stop)
      emit(news_of(g.segment), g.from + at - g.first, g.from + till - g.first, run, at - run[1])
      at = till
    end
  end
end

local function add_tier(told, from, to, run)
  push_piece(told.pieces, from, to, reported_ms, run[2])
end

local function add_counts(told, from, to, run, at)
  push_counts(told.runs, from, run[2] + at * run[3], run[3], to - from)
end

-- Order flat quadruples by their first number.
local function in_order(flat)
  local ordered = true
  for k = 5, #flat, 4 do ordered = ordered and flat[k] > flat[k - 4] end
  if ordered then return flat end
  local index, out = {}, {}
  for k = 1, #flat, 4 do index[#index + 1] = k end
  table.sort(index, function(x, y) return flat[x] < flat[y] end)
  for _, k in ipairs(index) do push_piece(out, flat[k], flat[k + 1], flat[k + 2], flat[k + 3]) end
  return out
end

local oldest = {} -- segment -> the slot's oldest time in it

-- Returns the holdings and the prefixes that are new.
local function cover_segment(segment, slot)
  local r, ranges, told = records[segment], {}, 0
  local to, time = tail_of(r, slot)
  news[segment].before = { length = fresh[segment] and 0 or old_length[segment], to = to, time = time }
  if fresh[segment] then
    local length = head_of(r)
    records[segment] = write('>I2I2', length, length) .. encode_pieces(slot, news[segment].pieces)
    oldest[segment] = reported_ms
    return length, length
  end
  local pieces = in_order(news[segment].pieces)
  for k = 1, #pieces, 4 do
    ranges[#ranges + 1], ranges[#ranges + 2] = pieces[k], pieces[k + 1]
    told = told + pieces[k + 1] - pieces[k]
  end
  local length, held = head_of(r)
  local added, had = uncovered(r, ranges), nil
  r, had, oldest[segment] = cover(r, slot, pieces)
  records[segment] = with_head(r, length, held + added)
  return told - had, added
end

local stored_counts = {} -- counts field -> value

local function count_segments(slot)
  local fields_of, known = {}, {}
  for _, segment in ipairs(changed) do
    fields_of[segment] = counts_field(read('>I4', segment), slot)
    if not fresh[segment] then known[#known + 1] = fields_of[segment] end
  end
  local values = #known > 0 and call('HMGET', P.counts, unpack(known)) or {}
  local old = {}
  for k = 1, #known do old[known[k]] = values[k] end
  for _, segment in ipairs(changed) do
    local field, runs = fields_of[segment], news[segment].runs
    if fresh[segment] then
      stored_counts[field] = encode_counts(runs)
    else
      stored_counts[field] = merge_counts(old[field] or '', (head_of(records[segment])), in_order(runs))
    end
  end
end

-- Whether anything that the order of giving way depends on changed for the slot's stretch.
local function moved(told, to, time)
  return told.before.to ~= to or told.before.time ~= time
end

-- Give the slot's stretches, and where a quota watches the segments too, their places in the order of giving way.
-- Returns by how much the hot blocks changed.
local function order_segments(slot, began)
  local has_hits, has_tails, hot = call('EXISTS', P.hits) == 1, call('EXISTS', M.tails) == 1, 0
  if lfu and not has_hits then
    call('HSET', P.hits, GUARD, '')
    call('HSET', M.totals, 'lfu', 1)
    has_hits = true
  end
  for _, segment in ipairs(changed) do
    local told, r = news[segment], records[segment]
    local to, time = tail_of(r, slot)
    if has_hits or has_tails or moved(told, to, time) then
      local hashes = new_hashes[segment] or call('HGET', P.hashes, segment) or ''
      local field = segment .. write('>I4', slot)
      local hits = nil
      if has_hits then hits = call('HGET', P.hits, field) end
      if lfu and not told.before.to then call('HSET', P.hits, field, write(HITS, began, 0, 0)) end
      settle_stretch(M, partition, hashes, replica, slot, told.before.to, to, time, hits)
      if has_tails then settle_tail(M, partition, hashes, told.before.length, r) end
      if has_hits then hot = hot + settle_hot(P, segment, r) end
    end
  end
  return hot
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

local function write_segments(slot)
  local held, values, rebuild = {}, {}, {}
  for _, segment in ipairs(changed) do
    held[#held + 1] = oldest[segment]
    held[#held + 1] = segment
    values[segment] = records[segment]
    if needs_rebuild(records[segment]) then
      rebuild[#rebuild + 1] = segment
      note_rebuild(M, partition, segment)
    end
  end
  put(P.blocks, new_blocks)
  put(P.hashes, flat(new_hashes))
  put(P.segments, flat(values))
  put(P.counts, flat(stored_counts))
  call('ZADD', P.held .. slot, unpack(held))
  return rebuild
end

local function renew_keys(slot)
  if call('PTTL', P.held .. slot) > key_ttl_ms * 7 / 8 then return end
  local serving, count = scope_keys(M.root, scheme_of(partition))
  local renewed = {
    M.totals, M.replicas, M.slots, M.stats, M.partitions, M.oldest, M.retired, M.order, M.credited, M.tails, M.rebuild, slot_key(M.root, slot), serving, count,
    P.blocks, P.segments, P.hashes, P.counts, P.hits, P.held .. slot,
  }
  for _, key in ipairs(renewed) do extend_life(key, key_ttl_ms) end
end

refuse_while_moving(M.root)
local T = read_totals(M, now_us)
local slot = slot_of(M, replica)
local scheme = scheme_of(partition)
local groups, taken = group(find_places())
slot = slot or adopt(M, T, replica)
for _, g in ipairs(groups) do
  if not g.segment then settle_group(T, g) end
end
spread(groups, tiers, '>I2B', 3, add_tier)
spread(groups, counts, RUN, RUN_WIDTH, add_counts)
local holdings, prefixes = 0, 0
for _, segment in ipairs(changed) do
  local own, all = cover_segment(segment, slot)
  holdings, prefixes = holdings + own, prefixes + all
end
count_segments(slot)

open_partition()
local rebuild = write_segments(slot)
T.hot = T.hot + order_segments(slot, T.next_version)
enter_scope(M, T, scheme, replica, reported_ms)
if holdings > 0 then
  count_scope(M, T, scheme, slot, replica, holdings)
  add_holdings(M, partition, slot, holdings)
end
settle_oldest(M, partition, slot)
add_to_totals(M, T, partition, prefixes, holdings)
T.newest = max(T.newest, reported_ms)
write_totals(M, T)
renew_keys(slot)
local reply = { 'OK', taken, holdings, prefixes, #rebuild }
for _, segment in ipairs(rebuild) do reply[#reply + 1] = segment end
return push_state(reply, M, T)
