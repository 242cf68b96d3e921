#!lua flags=allow-oom
--[[
Make room: take what gives way first out of one model, whatever has expired before anything else. One bounded step.

For a full index ("cap") the unit is what one replica holds at the end of a segment: no credits before few, old before new,
then by names (lib/order.lua); it is taken from its tail. For a quota ("quota") it is the end of a segment with all
who hold it, in the order of the freshest report of the last block.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 kind        cap or quota
  2 want        holdings (cap) or distinct prefixes (quota) to remove
  3 bar         stop before a score above this, or after "(" not below it: another model's turn; "" for none
  4 expired_at  ms; what was reported at this time or before goes first
  5 lfu         1: the tenant counts credits; 0: credits of an earlier policy are forgotten
  6 now_us      floor of the version
REPLY
  OK, expired holdings removed, other holdings removed, prefixes removed, n, n * (partition, segment that should be rebuilt), state
  MORE, expired holdings removed, other holdings removed, prefixes removed, n, n * (partition, segment ...), state    call again
COST
  O(log stretches) a unit and O(what is removed); at most 64 units and some 1536 blocks a call. The first quota of
  a model lists its segments once, some 64 a call.
]]
--- @include prelude
--- @include freeing
--- @include sweeping
local M = model_keys(KEYS[1])
local kind, want, bar, expired_at = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local lfu, now_us = ARGV[5] == '1', tonumber(ARGV[6])
local PAGE = 512
local LIST_PAGE = 64 -- each brings the whole of a segment's hashes

local budget = open_budget()

local exclusive = sub(bar, 1, 1) == '('
local limit = tonumber(exclusive and sub(bar, 2) or bar)

local function is_our_turn(score)
  return not limit or score < limit or (score == limit and not exclusive)
end

-- Credits of a policy that is no longer in force: their stretches go back to the order by time, then they are dropped.
local function forget_credits(T)
  if not T.lfu then return false end
  local page = call('ZRANGE', M.credited, 0, PAGE - 1, 'WITHSCORES')
  for k = 1, #page, 2 do
    call('ZREM', M.credited, page[k])
    call('ZADD', M.order, tonumber(page[k + 1]) % CREDIT_STEP, page[k])
  end
  if #page < 2 * PAGE then
    for _, partition in ipairs(call('SMEMBERS', M.partitions)) do
      call('UNLINK', partition_keys(M.root, partition).hits)
    end
    call('HDEL', M.totals, 'lfu')
    T.hot, T.lfu = 0, nil
  end
  return true
end

-- The first quota: list the segments, a page a call. The empty member keeps the key alive and marks where to go on.
local function list_tails(T)
  if call('EXISTS', M.tails) == 0 then
    call('ZADD', M.tails, '+inf', '')
    call('PEXPIRE', M.tails, max(call('PTTL', M.totals), 1))
    call('HSET', M.totals, 'tails', '')
    T.tails_listed = false
  end
  local at = call('HGET', M.totals, 'tails')
  if at == 'done' then return false end
  local partitions = call('SMEMBERS', M.partitions)
  table.sort(partitions)
  local partition, cursor = partitions[1], '0'
  if at ~= '' then
    local nul = string.find(at, '\0', 1, true)
    partition, cursor = sub(at, 1, nul - 1), sub(at, nul + 1)
  end
  local P = partition_keys(M.root, partition or '/')
  local page = call('HSCAN', P.segments, cursor, 'COUNT', LIST_PAGE)
  for k = 1, #page[2], 2 do
    local segment, r = page[2][k], page[2][k + 1]
    if #segment == 4 then settle_tail(M, partition, call('HGET', P.hashes, segment) or '', 0, r) end
  end
  local nxt = 'done'
  if page[1] ~= '0' then
    nxt = partition .. '\0' .. page[1]
  else
    for _, other in ipairs(partitions) do
      if partition and other > partition then
        nxt = other .. '\0' .. '0'
        break
      end
    end
  end
  call('HSET', M.totals, 'tails', nxt)
  T.tails_listed = nxt == 'done'
  return true
end

local function place_of(P, key)
  local place = call('HGET', P.blocks, key)
  if not place then return nil end
  local segment = sub(place, 1, 4)
  return segment, (read('>I2', place, 5)), call('HGET', P.segments, segment)
end

local function take_from(T, partition, slot, replica, segment, r, from, to)
  local removal = open_removal(M, partition, slot, replica, budget)
  removal.records[segment] = r
  take(removal, segment, { from, to, NO_FENCE })
  close_removal(removal)
  settle_removal(M, T, removal)
  forget_if_idle(M, slot, replica)
  return removal.records[segment]
end

-- Where the slot's last run of one time begins, above its credited depth unless the tail itself is credited.
local function unit_of(P, segment, r, slot)
  local _, last = slot_range(r, slot)
  local _, from, to = read(INTERVAL, r, HEAD + 1 + (last - 1) * WIDTH)
  local _, credits, depth = read_hits(call('HGET', P.hits, segment .. write('>I4', slot)))
  if lfu and credits > 0 and depth < to then from = max(from, depth) end
  return from, to
end

local function trim_stretch(T, left)
  local index = M.order
  local first = call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if not first[1] then
    index = M.credited
    first = call('ZRANGE', index, 0, 0, 'WITHSCORES')
  end
  if not first[1] or not is_our_turn(tonumber(first[2])) then return false end
  local partition, key, replica, slot = read_stretch(first[1])
  local P = partition_keys(M.root, partition)
  local segment, offset, r = place_of(P, key)
  if not r or tail_of(r, slot) ~= offset + 1 then
    call('ZREM', index, first[1]) -- its key was lost
    return true
  end
  local from, to = unit_of(P, segment, r, slot)
  take_from(T, partition, slot, replica, segment, r, max(from, to - left), to)
  return true
end

-- Where the last blocks of a segment begin that share the freshest report of its tail.
local function equally_fresh(r, length, freshest)
  local from = length
  for p = HEAD + 1, #r, WIDTH do
    local _, a, b, time = read(INTERVAL, r, p)
    if b == length and time == freshest and a < from then from = a end
  end
  for p = HEAD + 1, #r, WIDTH do
    local _, _, b, time = read(INTERVAL, r, p)
    if time > freshest and b > from then from = b end
  end
  return from
end

-- A member that does not say how fresh the segment's tail is: an eviction left a tail that nobody holds, or a key was lost.
local function relist(partition, segment, r, member)
  local P = partition_keys(M.root, partition)
  local hashes = call('HGET', P.hashes, segment) or ''
  call('ZREM', M.tails, member)
  local kept = cut_tail(P, segment, r, hashes)
  if kept then
    call('HSET', P.segments, segment, kept)
    if #hashes > 0 then settle_tail(M, partition, hashes, 0, kept) end
  end
  return true
end

local function trim_segment(T, left)
  local first = call('ZRANGE', M.tails, 0, 0, 'WITHSCORES')
  if not first[1] or first[1] == '' or not is_our_turn(tonumber(first[2])) then return false end
  local nul = string.find(first[1], '\0', 1, true)
  local partition, key = sub(first[1], 1, nul - 1), sub(first[1], nul + 1)
  local segment, offset, r = place_of(partition_keys(M.root, partition), key)
  if not r or (head_of(r)) ~= offset + 1 then
    call('ZREM', M.tails, first[1]) -- its key was lost
    return true
  end
  local length = offset + 1
  local from = max(equally_fresh(r, length, tonumber(first[2])), length - left)
  if from >= length then return relist(partition, segment, r, first[1]) end
  for _, slot in ipairs(slots_in(r)) do
    local to = r and tail_of(r, slot)
    if to and to > from then
      r = take_from(T, partition, slot, call('HGET', M.slots, slot) or '', segment, r, from, length)
    end
  end
  return true
end

refuse_while_moving(M.root)
local T = read_totals(M, now_us)
local holdings, prefixes = T.holdings, T.prefixes
local expired, more = expire_some(M, T, expired_at, budget)
local unexpired = T.prefixes
if not lfu and not more then more = forget_credits(T) end
if kind == 'quota' and not more then
  recall_rebuilds(M, budget) -- until they are rebuilt their tails are not listed
  more = #budget.rebuild > 0 or list_tails(T)
end
while not more do
  local gone = kind == 'cap' and holdings - T.holdings or prefixes - T.prefixes
  if gone >= want then break end
  if budget.segments <= 0 or budget.unmapped <= 0 then
    more = true
  else
    budget.segments = budget.segments - 1 -- whatever it finds: no step is free, so that none repeats for ever
    local trim = kind == 'cap' and trim_stretch or trim_segment
    if not trim(T, want - gone) then break end
  end
end
if T.holdings ~= holdings or more then write_totals(M, T) end
local reply = { more and 'MORE' or 'OK', expired, holdings - T.holdings - expired, unexpired - T.prefixes }
return push_state(push_rebuild(reply, budget), M, T)
