--- @include prelude
--- @include interval
-- Reading and changing a segment's record.
local MAX_SEGMENT_BLOCKS = 1024
local NO_FENCE = 281474976710655 -- the largest u48: everything is at or before it

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

local function oldest_piece(pieces)
  local oldest
  for k = 3, #pieces, 4 do
    if not oldest or pieces[k] < oldest then oldest = pieces[k] end
  end
  return oldest
end

-- Let a slot hold the fresh pieces (ordered, apart) instead of what it held there. Returns the record, how much of
-- them it held before, and the slot's oldest time. One pass, however many pieces.
local function cover(r, slot, fresh)
  local first, last = slot_range(r, slot)
  if first == last then return splice(r, first, last, encode_pieces(slot, fresh)), 0, oldest_piece(fresh) end
  local pieces, had, j, n = {}, 0, 1, #fresh
  for k = first, last - 1 do
    local _, a, b, t, g = read(INTERVAL, r, HEAD + 1 + k * WIDTH)
    while a < b do
      while j <= n and fresh[j + 1] <= a do
        push_piece(pieces, fresh[j], fresh[j + 1], fresh[j + 2], fresh[j + 3])
        j = j + 4
      end
      local stop = b
      if j <= n and fresh[j] < b then stop = max(a, fresh[j]) end
      if a < stop then push_piece(pieces, a, stop, t, g) end
      a = stop
      if j <= n and a < b then
        stop = min(b, fresh[j + 1])
        had, a = had + stop - a, stop
      end
    end
  end
  for k = j, n, 4 do push_piece(pieces, fresh[k], fresh[k + 1], fresh[k + 2], fresh[k + 3]) end
  return splice(r, first, last, encode_pieces(slot, pieces)), had, oldest_piece(pieces)
end

-- Take stretches (flat from, to, fence; ordered, apart) from a slot where its time is at or before the fence. Returns
-- the record, the removed stretches (flat from, to) and their length. One pass, however many stretches.
local function uncover(r, slot, cuts)
  local first, last = slot_range(r, slot)
  local pieces, gone, removed, j, n = {}, {}, 0, 1, #cuts
  for k = first, last - 1 do
    local _, a, b, t, g = read(INTERVAL, r, HEAD + 1 + k * WIDTH)
    while j <= n and cuts[j + 1] <= a do j = j + 3 end
    local m = j
    while m <= n and cuts[m] < b do
      local lo, hi = max(cuts[m], a), min(cuts[m + 1], b)
      if t <= cuts[m + 2] then
        if a < lo then push_piece(pieces, a, lo, t, g) end
        gone[#gone + 1], gone[#gone + 2] = lo, hi
        removed, a = removed + hi - lo, hi
      end
      m = m + 3
    end
    if a < b then push_piece(pieces, a, b, t, g) end
  end
  if removed == 0 then return r, gone, 0 end
  return splice(r, first, last, encode_pieces(slot, pieces)), gone, removed
end

-- How many blocks of the ranges (flat from, to; ordered, apart) nobody holds.
local function uncovered(r, ranges)
  local free, spans, n = 0, {}, #ranges
  for k = 1, n, 2 do free = free + ranges[k + 1] - ranges[k] end
  local lo, hi = ranges[1], ranges[n]
  for p = HEAD + 1, #r, WIDTH do
    local a, b = read('>I2I2', r, p + 4)
    if a < hi and b > lo then
      if a <= lo and b >= hi then return 0 end
      spans[#spans + 1] = a * 65536 + b
    end
  end
  table.sort(spans)
  local at, j = lo, 1
  for k = 1, #spans do
    local a, b = max(at, floor(spans[k] / 65536)), spans[k] % 65536
    while j <= n and ranges[j + 1] <= a do j = j + 2 end
    local m = j
    while m <= n and ranges[m] < b do
      free = free - max(0, min(b, ranges[m + 1]) - max(a, ranges[m]))
      m = m + 2
    end
    at = max(at, b)
  end
  return free
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

-- Whether a segment should be rebuilt: mostly held by nobody, or not at its tail, or cut up by many intervals a holder.
local MAX_INTERVALS = 128
local function needs_rebuild(r)
  local length, held = head_of(r)
  if length > 2 * held or reach_of(r) < length then return true end
  local n = interval_count(r)
  return n > MAX_INTERVALS and length > 1 and n > 2 * #slots_in(r)
end
