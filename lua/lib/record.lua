--- @include prelude
-- A segment's record: who holds which stretch of it.
--
--   u16 length    blocks mapped into the segment
--   u16 held      of them, blocks that at least one slot holds
--   then 15 bytes an interval, ordered by (slot, from), never overlapping within a slot:
--   u32 slot, u16 from, u16 to (exclusive), u48 time in ms, u8 tier
local HEAD, WIDTH, INTERVAL = 4, 15, '>I4I2I2I6B'
local MAX_SEGMENT_BLOCKS = 1024
local NO_FENCE = 281474976710655 -- the largest u48: everything is at or before it

local function head_of(r)
  local length, held = read('>I2I2', r)
  return length, held
end

local function with_head(r, length, held)
  return write('>I2I2', length, held) .. sub(r, HEAD + 1)
end

local function interval_count(r)
  return (#r - HEAD) / WIDTH
end

-- The intervals of one slot, as indexes [first, last).
local function slot_range(r, slot)
  local n = interval_count(r)
  local lo, hi = 0, n
  while lo < hi do
    local mid = floor((lo + hi) / 2)
    if (read('>I4', r, HEAD + 1 + mid * WIDTH)) < slot then lo = mid + 1 else hi = mid end
  end
  local last = lo
  while last < n and (read('>I4', r, HEAD + 1 + last * WIDTH)) == slot do last = last + 1 end
  return lo, last
end

-- Pieces are flat: from, to, time, tier, from, ... Neighbours that touch and agree become one.
local function encode_pieces(slot, pieces)
  local out = {}
  local from, to, time, tier
  for k = 1, #pieces, 4 do
    if from and to == pieces[k] and time == pieces[k + 2] and tier == pieces[k + 3] then
      to = pieces[k + 1]
    else
      if from then out[#out + 1] = write(INTERVAL, slot, from, to, time, tier) end
      from, to, time, tier = pieces[k], pieces[k + 1], pieces[k + 2], pieces[k + 3]
    end
  end
  if from then out[#out + 1] = write(INTERVAL, slot, from, to, time, tier) end
  return concat(out)
end

local function push_piece(pieces, from, to, time, tier)
  local n = #pieces
  pieces[n + 1], pieces[n + 2], pieces[n + 3], pieces[n + 4] = from, to, time, tier
end

local function splice(r, first, last, body)
  return sub(r, 1, HEAD + first * WIDTH) .. body .. sub(r, HEAD + 1 + last * WIDTH)
end

-- Let a slot hold [from, to); return the record, how much of it the slot held before, and the slot's oldest time.
local function cover(r, slot, from, to, time, tier)
  local first, last = slot_range(r, slot)
  if first == last then return splice(r, first, last, write(INTERVAL, slot, from, to, time, tier)), 0, time end
  local pieces, right, had, oldest = {}, {}, 0, time
  for k = first, last - 1 do
    local _, a, b, t, g = read(INTERVAL, r, HEAD + 1 + k * WIDTH)
    had = had + max(0, min(b, to) - max(a, from))
    if a < from then push_piece(pieces, a, min(b, from), t, g) end
    if b > to then push_piece(right, max(a, to), b, t, g) end
    if (a < from or b > to) and t < oldest then oldest = t end
  end
  push_piece(pieces, from, to, time, tier)
  for k = 1, #right do pieces[#pieces + 1] = right[k] end
  return splice(r, first, last, encode_pieces(slot, pieces)), had, oldest
end

-- Take [from, to) from a slot where its time is at or before the fence. Return the record, the removed stretches
-- (flat from, to), their length, and the slot's oldest remaining time (nil: it holds nothing here any more).
local function uncover(r, slot, from, to, fence)
  local first, last = slot_range(r, slot)
  local pieces, gone, removed, oldest = {}, {}, 0, nil
  for k = first, last - 1 do
    local _, a, b, t, g = read(INTERVAL, r, HEAD + 1 + k * WIDTH)
    local lo, hi = max(a, from), min(b, to)
    local kept = b - a
    if t <= fence and hi > lo then
      gone[#gone + 1], gone[#gone + 2] = lo, hi
      removed, kept = removed + hi - lo, kept - (hi - lo)
      if a < lo then push_piece(pieces, a, lo, t, g) end
      if b > hi then push_piece(pieces, hi, b, t, g) end
    else
      push_piece(pieces, a, b, t, g)
    end
    if kept > 0 and (not oldest or t < oldest) then oldest = t end
  end
  if removed == 0 then return r, gone, 0, oldest end
  return splice(r, first, last, encode_pieces(slot, pieces)), gone, removed, oldest
end

-- How many blocks of [from, to) nobody holds.
local function uncovered(r, from, to)
  local spans = {}
  for p = HEAD + 1, #r, WIDTH do
    local a, b = read('>I2I2', r, p + 4)
    if a < to and b > from then
      if a <= from and b >= to then return 0 end
      spans[#spans + 1] = { a, b }
    end
  end
  if #spans > 1 then table.sort(spans, function(x, y) return x[1] < y[1] end) end
  local free, at = 0, from
  for k = 1, #spans do
    local a, b = spans[k][1], spans[k][2]
    if a > at then free = free + a - at end
    if b > at then at = b end
  end
  return free + max(0, to - at)
end

-- One past the last block that anybody holds.
local function reach_of(r)
  local reach = 0
  for p = HEAD + 1, #r, WIDTH do
    local b = read('>I2', r, p + 6)
    if b > reach then reach = b end
  end
  return reach
end

local function slots_in(r)
  local slots, previous = {}, nil
  for p = HEAD + 1, #r, WIDTH do
    local slot = read('>I4', r, p)
    if slot ~= previous then slots[#slots + 1], previous = slot, slot end
  end
  return slots
end

-- Whether a segment should be rebuilt: cut up by many intervals a holder, or mostly held by nobody.
local MAX_INTERVALS = 128
local function needs_rebuild(r)
  local length, held = head_of(r)
  if length > 2 * held then return true end
  local n = interval_count(r)
  return n > MAX_INTERVALS and length > 1 and n > 2 * #slots_in(r)
end
