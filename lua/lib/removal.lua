--- @include prelude
--- @include keys
--- @include record
--- @include counts
-- Taking a slot's holdings out of the segments of one partition.

local MAX_UNMAPPED = 1024 -- blocks that one call unmaps before it leaves the rest to the next

local function open_removal(M, partition, slot)
  return {
    P = partition_keys(M.root, partition), slot = slot,
    records = {}, oldest = {}, changed = {},
    holdings = 0, prefixes = 0, unmapped = 0, rebuild = {},
  }
end

local function load_records(removal, segments)
  local values = call('HMGET', removal.P.segments, unpack(segments))
  for k = 1, #segments do
    if values[k] then removal.records[segments[k]] = values[k] end
  end
end

local function take(removal, segment, cuts)
  local r = removal.records[segment]
  local changed, gone, removed, oldest = uncover(r, removal.slot, cuts)
  if removed == 0 then return end
  local freed = uncovered(changed, gone)
  local length, held = head_of(r)
  removal.records[segment] = with_head(changed, length, held - freed)
  removal.changed[#removal.changed + 1] = segment
  removal.oldest[segment] = oldest or false
  removal.holdings, removal.prefixes = removal.holdings + removed, removal.prefixes + freed
end

local function unmap(P, hashes, from, to)
  local fields = {}
  for k = from, to - 1 do fields[#fields + 1] = sub(hashes, k * 8 + 1, k * 8 + 8) end
  if #fields > 0 then call('HDEL', P.blocks, unpack(fields)) end
end

-- Cut the tail that nobody holds off a segment; one that nobody holds at all is deleted.
local function cut_tail(P, segment, r)
  local length, held = head_of(r)
  local reach = reach_of(r)
  if reach == length then return r, 0 end
  local hashes = call('HGET', P.hashes, segment) or ''
  unmap(P, hashes, reach, length)
  if reach == 0 then
    call('HDEL', P.segments, segment)
    call('HDEL', P.hashes, segment)
    return nil, length
  end
  call('HSET', P.hashes, segment, sub(hashes, 1, reach * 8))
  return with_head(r, reach, held), length - reach
end

local function close_segment(removal, segment)
  local P, slot, r = removal.P, removal.slot, removal.records[segment]
  local oldest = removal.oldest[segment]
  if oldest then
    call('ZADD', P.held .. slot, oldest, segment)
  else
    call('ZREM', P.held .. slot, segment)
    call('HDEL', P.counts, counts_field(read('>I4', segment), slot))
  end
  if removal.unmapped < MAX_UNMAPPED then
    local cut
    r, cut = cut_tail(P, segment, r)
    removal.unmapped = removal.unmapped + cut
    removal.records[segment] = r
  end
  if not r then return end
  call('HSET', P.segments, segment, r)
  if needs_rebuild(r) then removal.rebuild[#removal.rebuild + 1] = segment end
end

local function close_removal(removal)
  for _, segment in ipairs(removal.changed) do close_segment(removal, segment) end
end

-- Take everything at or before the fence out of up to `limit` segments of a slot, oldest first. Returns
-- whether something may be left.
local function drop_oldest(removal, fence, limit)
  local held = removal.P.held .. removal.slot
  local segments = call('ZRANGEBYSCORE', held, '-inf', fence, 'LIMIT', 0, limit)
  if #segments == 0 then return false end
  load_records(removal, segments)
  for _, segment in ipairs(segments) do
    if removal.unmapped >= MAX_UNMAPPED then return true end
    local before = #removal.changed
    if removal.records[segment] then take(removal, segment, { 0, MAX_SEGMENT_BLOCKS, fence }) end
    if #removal.changed > before then close_segment(removal, segment) else call('ZREM', held, segment) end
  end
  return #segments == limit
end
