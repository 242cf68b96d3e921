#!lua flags=no-writes
--[[
Find, for every replica, how much of the head of a chain it holds unexpired.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 partition   escaped "<scheme>/<adapter>"
  2 keys        block keys of the chain, 8 bytes each, concatenated
  3 expired_at  ms; holdings of this time or older do not count
  4 silent_at   ms; replicas with statistics and no sign of life after it are silent; "" when nobody is
  5 want_path   1: say where the blocks were found, for credits
  6 known       version of the scope's membership that the caller has, or ""
  7 survivors   0: the walk starts here; n: only the n replicas that follow are still in the run
  * replica     ids of the survivors
REPLY
  OK, walked, n, n * (replica, blocks, oldest ms, tier, stats or ""), path, serving (lib/holders push_path, push_serving)
  MORE, walked, n, n * (replica, blocks, oldest ms, tier, stats or ""), path      go on after `walked` blocks with the
                                                                                 replicas that hold all of them
  walked: blocks that were looked at. Survivors' runs count from where this call began.
COST
  one step a segment, O(intervals) each, plus the bytes compared; at most 16,384 blocks or 256 segments a call.
]]
--- @include prelude
--- @include keys
--- @include interval
--- @include holders
local totals_key = KEYS[1]
local root = model_root(totals_key)
local partition, keys, expired_at = ARGV[1], ARGV[2], tonumber(ARGV[3])
local silent_at, want_path, known, survivors = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6], tonumber(ARGV[7])
local MAX_BLOCKS, MAX_SEGMENTS = 16384, 256

local P = root .. ':P:' .. partition
local blocks_key, segments_key, hashes_key = P .. ':blocks', P .. ':segments', P .. ':hashes'
local asked = #keys / 8
local reach, oldest, coldest, path = {}, {}, {}, {}

-- How many blocks from `offset` of the segment equal the request's from `at`: exact comparison, by bisection.
local function common_run(segment, offset, at, most)
  if most <= 1 then return most end
  local hashes = call('HGET', hashes_key, segment)
  if not hashes then return 1 end
  if sub(hashes, offset * 8 + 1, (offset + most) * 8) == sub(keys, at * 8 + 1, (at + most) * 8) then return most end
  local same, differ = 1, most
  while differ - same > 1 do
    local mid = floor((same + differ) / 2)
    if sub(hashes, (offset + same) * 8 + 1, (offset + mid) * 8) == sub(keys, (at + same) * 8 + 1, (at + mid) * 8) then
      same = mid
    else
      differ = mid
    end
  end
  return same
end

-- Extend the runs that reach block `at` by what the record says of [offset, offset + size); return how many go on.
local function extend_runs(r, offset, size, at)
  local stop, going, slot_now, edge = offset + size, 0, nil, nil
  for p = HEAD + 1, #r, WIDTH do
    local slot, from, to, time, tier = read(INTERVAL, r, p)
    if slot ~= slot_now then
      slot_now, edge = slot, nil
      if (at == 0 and survivors == 0) or reach[slot] == at then edge = offset end
    end
    if edge and to > edge then
      if from > edge or time <= expired_at then
        edge = nil
      else
        if to >= stop then
          edge, reach[slot], going = nil, at + size, going + 1
        else
          edge, reach[slot] = to, at + to - offset
        end
        if not oldest[slot] or time < oldest[slot] then oldest[slot] = time end
        if not coldest[slot] or tier > coldest[slot] then coldest[slot] = tier end
      end
    end
  end
  return going
end

local function start_with_survivors()
  local ids = {}
  for k = 1, survivors do ids[k] = ARGV[7 + k] end
  for _, slot in pairs(many('HMGET', root .. ':replicas', ids)) do
    if slot then reach[tonumber(slot)] = 0 end
  end
end

local function walk()
  local at, steps, limit = 0, 0, min(asked, MAX_BLOCKS)
  while at < limit and steps < MAX_SEGMENTS do
    local place = call('HGET', blocks_key, sub(keys, at * 8 + 1, at * 8 + 8))
    if not place then return at, true end
    local segment, offset = sub(place, 1, 4), (read('>I2', place, 5))
    local r = call('HGET', segments_key, segment)
    if not r then return at, true end
    local size = common_run(segment, offset, at, min(limit - at, (head_of(r)) - offset))
    if want_path then path[#path + 1], path[#path + 2], path[#path + 3] = segment, offset, size end
    if size < 1 or extend_runs(r, offset, size, at) == 0 then return at + max(size, 0), true end
    at, steps = at + size, steps + 1 + floor(#r / 1024) -- a long record is as much work as many short ones
  end
  return at, at >= asked
end

local function evidence(walked, complete)
  local slots = {}
  for slot, blocks in pairs(reach) do
    if blocks > 0 then slots[#slots + 1] = slot end
  end
  local names = names_of(root, slots)
  local ids = {}
  for k = 1, #slots do ids[k] = names[k] or '' end
  local stats = stats_of(root, ids)
  local reply, found = { complete and 'OK' or 'MORE', walked, 0 }, 0
  for k = 1, #slots do
    if names[k] then
      local slot, n = slots[k], #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = names[k], reach[slot], oldest[slot]
      reply[n + 4], reply[n + 5] = coldest[slot], stats[k] or ''
      found = found + 1
    end
  end
  reply[3] = found
  push_path(reply, totals_key, path, want_path)
  if not complete then return reply end
  return push_serving(reply, serving_of(root, scheme_of(partition), expired_at, silent_at, known))
end

if survivors > 0 then start_with_survivors() end
return evidence(walk())
