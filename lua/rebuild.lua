#!lua flags=allow-oom
--[[
Rewrite segments that have become wasteful: cut off the tail that nobody holds, squeeze out the blocks
that nobody holds when they are more than half, split in two what too many intervals cut up.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 partition   escaped "<scheme>/<adapter>"
  2 segments    u32 each
REPLY
  OK, segments looked at, n, n * segment that should be rebuilt again
COST
  O(blocks + intervals + counts) of the segments looked at, at most 1024 blocks or one segment a call.
]]
--- @include prelude
--- @include keys
--- @include record
--- @include counts
--- @include totals
--- @include removal
local M = model_keys(KEYS[1])
local partition, wanted = ARGV[1], ARGV[2]

local P = partition_keys(M.root, partition)
local hot = 0 -- by how much the hot blocks changed

-- Stretches of the segment that somebody holds: flat from, to.
local function held_stretches(r)
  local spans, out = {}, {}
  for p = HEAD + 1, #r, WIDTH do
    local a, b = read('>I2I2', r, p + 4)
    spans[#spans + 1] = a * 65536 + b
  end
  table.sort(spans)
  for _, span in ipairs(spans) do
    local a, b, n = floor(span / 65536), span % 65536, #out
    if n > 0 and a <= out[n] then
      out[n] = max(out[n], b)
    else
      out[n + 1], out[n + 2] = a, b
    end
  end
  return out
end

-- How far each stretch moves when the gaps before it close: flat, one number a stretch; and the length in all.
local function shifts_of(stretches)
  local shifts, length = {}, 0
  for k = 1, #stretches, 2 do
    shifts[#shifts + 1] = length - stretches[k]
    length = length + stretches[k + 1] - stretches[k]
  end
  return shifts, length
end

-- The index of the stretch that a held block is in.
local function stretch_at(stretches, offset)
  local lo, hi = 1, #stretches / 2
  while lo < hi do
    local mid = floor((lo + hi + 1) / 2)
    if stretches[mid * 2 - 1] <= offset then lo = mid else hi = mid - 1 end
  end
  return lo
end

-- The intervals within the stretches, moved so that the gaps close, and the slots' oldest times. An interval lies in
-- one stretch, but for what the stretches' two ends cut off.
local function squeeze_record(r, stretches)
  local shifts, length = shifts_of(stretches)
  local first, last = stretches[1], stretches[#stretches]
  local oldest, body, pieces, slot_now = {}, {}, {}, nil
  for p = HEAD + 1, #r, WIDTH do
    local slot, from, to, time, tier = read(INTERVAL, r, p)
    from, to = max(from, first), min(to, last)
    if from < to then
      if slot ~= slot_now then
        if slot_now then body[#body + 1] = encode_pieces(slot_now, pieces) end
        slot_now, pieces = slot, {}
      end
      local shift = shifts[stretch_at(stretches, from)]
      push_piece(pieces, from + shift, to + shift, time, tier)
      oldest[slot] = min(oldest[slot] or time, time)
    end
  end
  body[#body + 1] = encode_pieces(slot_now, pieces)
  return write('>I2I2', length, length) .. concat(body), oldest
end

local function squeeze_counts(value, old_length, stretches, shifts)
  local runs, p = {}, 1
  for k = 1, #stretches, 2 do
    p = copy_counts(runs, value, old_length, stretches[k], stretches[k + 1], shifts[(k + 1) / 2], p)
  end
  return encode_counts(runs)
end

local function squeeze_hashes(hashes, stretches)
  local out = {}
  for k = 1, #stretches, 2 do out[#out + 1] = sub(hashes, stretches[k] * 8 + 1, stretches[k + 1] * 8) end
  return concat(out)
end

local function map_blocks(segment, hashes)
  local fields = {}
  for k = 0, #hashes / 8 - 1 do
    fields[#fields + 1] = sub(hashes, k * 8 + 1, k * 8 + 8)
    fields[#fields + 1] = segment .. write('>I2', k)
  end
  if #fields > 0 then call('HSET', P.blocks, unpack(fields)) end
end

-- A slot's entry in P:hits for the stretches that move: its depth counts the blocks that are left before it.
local function squeeze_hits(value, stretches)
  local began, credits, depth = read_hits(value)
  local left = 0
  for k = 1, #stretches, 2 do
    left = left + max(0, min(depth, stretches[k + 1]) - stretches[k])
  end
  return write(HITS, began, left > 0 and credits or 0, left)
end

-- Write what the stretches of a segment hold as the segment `target`.
local function move(r, hashes, notes, stretches, target)
  local moved, oldest = squeeze_record(r, stretches)
  local kept, shifts = squeeze_hashes(hashes, stretches), shifts_of(stretches)
  call('HSET', P.segments, target, moved)
  call('HSET', P.hashes, target, kept)
  map_blocks(target, kept)
  for slot, time in pairs(oldest) do
    local field, hits = counts_field(read('>I4', target), slot), nil
    call('ZADD', P.held .. slot, time, target)
    call('HSET', P.counts, field, squeeze_counts(notes.counts[slot] or '', (head_of(r)), stretches, shifts))
    if notes.has_hits then
      hits = notes.hits[slot] and squeeze_hits(notes.hits[slot], stretches) or false
      if hits then call('HSET', P.hits, field, hits) end
    end
    local to, tail_time = tail_of(moved, slot)
    settle_stretch(M, partition, kept, notes.names[slot] or '', slot, nil, to, tail_time, hits)
  end
  if notes.has_tails then settle_tail(M, partition, kept, 0, moved) end
  if notes.has_hits then hot = hot + settle_hot(P, target, moved) end
  return oldest, moved
end

local function forget_slots(segment, slots, kept)
  for _, slot in ipairs(slots) do
    if not kept[slot] then
      call('ZREM', P.held .. slot, segment)
      call('HDEL', P.counts, counts_field(read('>I4', segment), slot))
      call('HDEL', P.hits, counts_field(read('>I4', segment), slot))
    end
  end
end

-- Clip stretches to [from, to).
local function clip(stretches, from, to)
  local out = {}
  for k = 1, #stretches, 2 do
    local a, b = max(stretches[k], from), min(stretches[k + 1], to)
    if a < b then out[#out + 1], out[#out + 2] = a, b end
  end
  return out
end

local function drop_segment(segment, length, hashes)
  unmap(P, hashes, 0, length)
  call('HDEL', P.segments, segment)
  call('HDEL', P.hashes, segment)
end

-- What is said of each slot outside the record: token counts, credits, and its replica's name, retired or not.
local function notes_of(segment, r)
  local slots, notes = slots_in(r), { counts = {}, names = {}, hits = {} }
  notes.has_hits, notes.has_tails = call('EXISTS', P.hits) == 1, call('EXISTS', M.tails) == 1
  for _, slot in ipairs(slots) do
    notes.counts[slot] = call('HGET', P.counts, counts_field(read('>I4', segment), slot)) or nil
    notes.names[slot] = call('HGET', M.slots, slot) or call('HGET', M.retired, slot) or nil
  end
  if notes.has_hits then notes.hits = hits_of_slots(P, segment, slots) end
  return notes, slots
end

-- A number of its own for a new segment, stored at once.
local function next_segment()
  local T = read_totals(M)
  call('HSET', M.totals, 'segment', T.segment + 1)
  return T.segment + 1
end

local again = {}

local function note(segment, r)
  if r and needs_rebuild(r) then
    again[#again + 1] = segment
    note_rebuild(M, partition, segment)
  end
end

local function unmap_gaps(hashes, stretches, length)
  local at = 0
  for k = 1, #stretches, 2 do
    unmap(P, hashes, at, stretches[k])
    at = stretches[k + 1]
  end
  unmap(P, hashes, at, length)
end

local function rebuild(segment, r, hashes)
  local length = head_of(r)
  local notes, slots = notes_of(segment, r)
  local stretches = held_stretches(r)
  if notes.has_tails then settle_tail(M, partition, hashes, length, nil) end
  if #stretches == 0 then return drop_segment(segment, length, hashes) end
  unmap_gaps(hashes, stretches, length)
  local split = interval_count(r) > MAX_INTERVALS and interval_count(r) > 2 * #slots
  local middle = split and floor((stretches[1] + stretches[#stretches]) / 2) or MAX_SEGMENT_BLOCKS
  local kept, left = move(r, hashes, notes, clip(stretches, 0, middle), segment)
  forget_slots(segment, slots, kept)
  note(segment, left)
  local rest = clip(stretches, middle, MAX_SEGMENT_BLOCKS)
  if #rest > 0 then
    local target = write('>I4', next_segment())
    local _, right = move(r, hashes, notes, rest, target)
    note(target, right)
  end
end

refuse_while_moving(M.root)
local seen, budget = 0, MAX_SEGMENT_BLOCKS
for p = 1, #wanted, 4 do
  local segment = sub(wanted, p, p + 3)
  local r, hashes = call('HGET', P.segments, segment), call('HGET', P.hashes, segment)
  if r and hashes and needs_rebuild(r) then
    budget = budget - (head_of(r))
    if budget < 0 and seen > 0 then break end
    rebuild(segment, r, hashes)
  end
  call('SREM', M.rebuild, partition .. '\0' .. segment)
  seen = seen + 1
end
if hot ~= 0 then call('HINCRBY', M.totals, 'hot', hot) end
local reply = { 'OK', seen, #again }
for _, segment in ipairs(again) do reply[#reply + 1] = segment end
return reply
