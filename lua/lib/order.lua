--- @include prelude
--- @include keys
--- @include record
-- The order in which stretches give way to a full index. A stretch is what one slot holds in one segment; it
-- gives way from its tail, so its place is that of its last block:
--
--   M:order      stretches whose tail has no credits -> the tail's time
--   M:credited   the others (LFU only) -> credits * 2^41 + the tail's time
--   M:tails      segments -> the freshest report of their last block; kept once a quota has asked for it
--
-- Members begin with the names, so that equal scores are ordered by partition, block key and replica:
--   order, credited: <partition> NUL <key of the tail block, 8 bytes> <replica id> <slot u32>
--   tails:           <partition> NUL <key of the tail block, 8 bytes>
local CREDIT_STEP = 2199023255552 -- 2^41: more than any time in ms; a double keeps 2047 credits beside it exactly
local MAX_RANKED_CREDITS = 2047
local HITS = '>I8I4I2' -- version at which the stretch began, credits, deepest credited offset

local function key_at(hashes, to)
  return sub(hashes, to * 8 - 7, to * 8)
end

-- One past a slot's last block in a segment, that block's time, and the slot's oldest time there; nil when it holds
-- nothing.
local function tail_of(r, slot)
  local first, last = slot_range(r, slot)
  if first == last then return nil end
  local _, _, to, time = read(INTERVAL, r, HEAD + 1 + (last - 1) * WIDTH)
  local oldest = time
  for k = first, last - 2 do
    local _, _, _, t = read(INTERVAL, r, HEAD + 1 + k * WIDTH)
    if t < oldest then oldest = t end
  end
  return to, time, oldest
end

local function stretch_member(partition, hashes, to, replica, slot)
  return partition .. '\0' .. key_at(hashes, to) .. replica .. write('>I4', slot)
end

-- What a member of M:order or M:credited names: partition, tail key, replica, slot.
local function read_stretch(member)
  local nul = string.find(member, '\0', 1, true)
  local slot = read('>I4', member, #member - 3)
  return sub(member, 1, nul - 1), sub(member, nul + 1, nul + 8), sub(member, nul + 9, -5), slot
end

local function read_hits(value)
  if not value then return 0, 0, 0 end
  local began, credits, depth = read(HITS, value)
  return began, credits, depth
end

-- Give a stretch its place. `old_to` and `new_to` are its tail before and after (nil: no stretch); `hits` is its
-- entry in P:hits, if the partition has any.
local function settle_stretch(M, partition, hashes, replica, slot, old_to, new_to, time, hits)
  if old_to and old_to ~= new_to then
    local gone = stretch_member(partition, hashes, old_to, replica, slot)
    call('ZREM', M.order, gone)
    if hits ~= nil then call('ZREM', M.credited, gone) end
  end
  if not new_to then return end
  local member = stretch_member(partition, hashes, new_to, replica, slot)
  local _, credits, depth = read_hits(hits)
  if credits > 0 and depth >= new_to then
    call('ZREM', M.order, member)
    call('ZADD', M.credited, min(credits, MAX_RANKED_CREDITS) * CREDIT_STEP + time, member)
  else
    if hits ~= nil then call('ZREM', M.credited, member) end
    call('ZADD', M.order, time, member)
  end
end

-- The freshest report of a segment's last block.
local function tail_freshness(r)
  local length, freshest = (head_of(r)), 0
  for p = HEAD + 1, #r, WIDTH do
    local _, _, to, time = read(INTERVAL, r, p)
    if to == length and time > freshest then freshest = time end
  end
  return freshest
end

local function tails_member(partition, hashes, length)
  return partition .. '\0' .. key_at(hashes, length)
end

-- Keep M:tails when a segment changed: `old_length` 0 for a new one, `r` nil for one that is gone.
local function settle_tail(M, partition, hashes, old_length, r)
  local length = r and (head_of(r)) or 0
  if old_length > 0 and old_length ~= length then
    call('ZREM', M.tails, tails_member(partition, hashes, old_length))
  end
  if r then call('ZADD', M.tails, tail_freshness(r), tails_member(partition, hashes, length)) end
end

-- The blocks of a segment within the credited depth of some slot with enough credits; kept in P:hits by segment.
local function hot_blocks(r, hits_of, threshold)
  local ranges = {}
  for p = HEAD + 1, #r, WIDTH do
    local slot, from, to = read(INTERVAL, r, p)
    local _, credits, depth = read_hits(hits_of[slot])
    if credits >= threshold and depth > from then ranges[#ranges + 1] = from * 65536 + min(to, depth) end
  end
  table.sort(ranges)
  local hot, at = 0, 0
  for _, range in ipairs(ranges) do
    local from, to = max(at, floor(range / 65536)), range % 65536
    if to > from then hot, at = hot + to - from, to end
  end
  return hot
end

local function hits_of_slots(P, segment, slots)
  if #slots == 0 then return {} end
  local fields = {}
  for k, slot in ipairs(slots) do fields[k] = segment .. write('>I4', slot) end
  local values, out = call('HMGET', P.hits, unpack(fields)), {}
  for k, slot in ipairs(slots) do out[slot] = values[k] or nil end
  return out
end

-- Count a segment's hot blocks anew; returns by how much they changed.
local function settle_hot(P, segment, r)
  local threshold = tonumber(call('HGET', P.hits, 'threshold')) or 2
  local hot = r and hot_blocks(r, hits_of_slots(P, segment, slots_in(r)), threshold) or 0
  local before = tonumber(call('HGET', P.hits, segment)) or 0
  if hot > 0 then call('HSET', P.hits, segment, hot) elseif before > 0 then call('HDEL', P.hits, segment) end
  return hot - before
end
