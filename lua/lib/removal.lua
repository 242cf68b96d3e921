--- @include prelude
--- @include keys
--- @include record
--- @include counts
--- @include order
-- Taking a slot's holdings out of the segments of one partition.

local MAX_SEGMENTS = 64 -- segments that one call empties, oldest first, before it leaves the rest to the next
local MAX_UNMAPPED = 512 -- blocks that one call unmaps, likewise

-- What one call may still do, and the segments it leaves to be rebuilt (flat partition, segment).
local function open_budget()
  return { segments = MAX_SEGMENTS, unmapped = MAX_UNMAPPED, rebuild = {} }
end

-- Taking from one slot in one partition: `replica` is its name, `retired` whether it is a slot that is being freed.
local function open_removal(M, partition, slot, replica, budget, retired)
  local P = partition_keys(M.root, partition)
  return {
    M = M, P = P, partition = partition, slot = slot, replica = replica, retired = retired, budget = budget,
    has_hits = call('EXISTS', P.hits) == 1, has_tails = call('EXISTS', M.tails) == 1,
    records = {}, before = {}, changed = {},
    holdings = 0, prefixes = 0, hot = 0,
  }
end

local function push_rebuild(reply, budget)
  reply[#reply + 1] = #budget.rebuild / 2
  for _, value in ipairs(budget.rebuild) do reply[#reply + 1] = value end
  return reply
end

local function load_records(removal, segments)
  local values = call('HMGET', removal.P.segments, unpack(segments))
  for k = 1, #segments do
    if values[k] then removal.records[segments[k]] = values[k] end
  end
end

local function take(removal, segment, cuts)
  local r = removal.records[segment]
  local changed, gone, removed = uncover(r, removal.slot, cuts)
  if removed == 0 then return end
  local freed = uncovered(changed, gone)
  local length, held = head_of(r)
  removal.before[segment] = { length = length, to = tail_of(r, removal.slot) }
  removal.records[segment] = with_head(changed, length, held - freed)
  removal.changed[#removal.changed + 1] = segment
  removal.holdings, removal.prefixes = removal.holdings + removed, removal.prefixes + freed
end

local function unmap(P, hashes, from, to)
  local fields = {}
  for k = from, to - 1 do fields[#fields + 1] = sub(hashes, k * 8 + 1, k * 8 + 8) end
  if #fields > 0 then call('HDEL', P.blocks, unpack(fields)) end
end

-- Cut the tail that nobody holds off a segment; one that nobody holds at all is deleted.
local function cut_tail(P, segment, r, hashes)
  local length, held = head_of(r)
  local reach = reach_of(r)
  if reach == length then return r, 0 end
  unmap(P, hashes, reach, length)
  if reach == 0 then
    call('HDEL', P.segments, segment)
    call('HDEL', P.hashes, segment)
    return nil, length
  end
  call('HSET', P.hashes, segment, sub(hashes, 1, reach * 8))
  return with_head(r, reach, held), length - reach
end

-- What a segment says of the slot outside its record: its oldest time there, token counts, credits and place in the order.
local function close_stretch(removal, segment, r, hashes)
  local P, slot = removal.P, removal.slot
  local field = segment .. write('>I4', slot)
  local hits = nil
  if removal.has_hits then hits = call('HGET', P.hits, field) end
  local to, time, oldest = tail_of(r, slot)
  settle_stretch(removal.M, removal.partition, hashes, removal.replica, slot, removal.before[segment].to, to, time, hits)
  if to then
    call('ZADD', P.held .. slot, oldest, segment)
  else
    call('ZREM', P.held .. slot, segment)
    call('HDEL', P.counts, field)
    if hits then call('HDEL', P.hits, field) end
  end
end

local function close_segment(removal, segment)
  local P, budget, r = removal.P, removal.budget, removal.records[segment]
  local hashes = call('HGET', P.hashes, segment) or ''
  close_stretch(removal, segment, r, hashes)
  if budget.unmapped > 0 then
    local cut
    r, cut = cut_tail(P, segment, r, hashes)
    budget.unmapped = budget.unmapped - cut
    removal.records[segment] = r
  end
  if removal.has_tails then
    local whole = r and reach_of(r) == head_of(r) and r or nil -- a tail that nobody holds is listed when it is cut
    settle_tail(removal.M, removal.partition, hashes, removal.before[segment].length, whole)
    if r and not whole then call('ZREM', removal.M.tails, tails_member(removal.partition, hashes, (head_of(r)))) end
  end
  if removal.has_hits then removal.hot = removal.hot + settle_hot(P, segment, r) end
  if not r then return end
  call('HSET', P.segments, segment, r)
  if needs_rebuild(r) then
    local n = #budget.rebuild
    budget.rebuild[n + 1], budget.rebuild[n + 2] = removal.partition, segment
    note_rebuild(removal.M, removal.partition, segment)
  end
end

local function close_removal(removal)
  for _, segment in ipairs(removal.changed) do close_segment(removal, segment) end
end

-- Take everything at or before the fence out of a slot's segments, oldest first, as far as the budget goes. Returns
-- whether something may be left.
local function drop_oldest(removal, fence)
  local held, budget = removal.P.held .. removal.slot, removal.budget
  if budget.segments <= 0 then return true end
  local segments = call('ZRANGEBYSCORE', held, '-inf', fence, 'LIMIT', 0, budget.segments)
  if #segments == 0 then return false end
  local all = #segments < budget.segments
  load_records(removal, segments)
  for _, segment in ipairs(segments) do
    if budget.unmapped <= 0 then return true end
    budget.segments = budget.segments - 1
    local before = #removal.changed
    if removal.records[segment] then take(removal, segment, { 0, MAX_SEGMENT_BLOCKS, fence }) end
    if #removal.changed > before then close_segment(removal, segment) else call('ZREM', held, segment) end
  end
  return not all
end
