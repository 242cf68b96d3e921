#!lua flags=no-writes
--[[
Find who holds one block unexpired, and with how many tokens.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 partition   escaped "<scheme>/<adapter>"
  2 key         block key, 8 bytes; "" matches nothing
  3 expired_at  ms; holdings of this time or older do not count
  4 silent_at   ms; replicas with statistics and no sign of life after it are silent; "" when nobody is
  5 want_path   1: say where the block was found, for credits
  6 known       version of the scope's membership that the caller has, or ""; not together with want_warm
  7 want_warm   1: a miss also brings the statistics of the serving replicas
REPLY
  HIT, n, n * (replica, tokens, time ms, tier, stats or ""), path, serving (lib/holders push_path, push_serving)
  MISS, n, n * stats or "" of the serving replicas, serving (lib/holders push_serving)      n is 0 unless want_warm
COST
  O(intervals of one segment + serving replicas).
]]
--- @include prelude
--- @include keys
--- @include interval
--- @include counts
--- @include holders
local totals_key = KEYS[1]
local root = model_root(totals_key)
local partition, key, expired_at = ARGV[1], ARGV[2], tonumber(ARGV[3])
local silent_at, want_path, want_warm = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[7] == '1'
local known = ARGV[6]

local P = partition_keys(root, partition)

local function holdings_at(segment, r, offset)
  local slots, fields, times, tiers = {}, {}, {}, {}
  for p = HEAD + 1, #r, WIDTH do
    local slot, from, to, time, tier = read(INTERVAL, r, p)
    if from <= offset and to > offset and time > expired_at then
      local n = #slots + 1
      slots[n], fields[n], times[n], tiers[n] = slot, counts_field(segment, slot), time, tier
    end
  end
  return slots, fields, times, tiers
end

local function push_holders(reply, segment, offset, r)
  local slots, fields, times, tiers = holdings_at(segment, r, offset)
  if #slots == 0 then return end
  local names, counts = names_of(root, slots), many('HMGET', P.counts, fields)
  local ids = {}
  for k = 1, #slots do ids[k] = names[k] or '' end
  local stats = stats_of(root, ids)
  for k = 1, #slots do
    if names[k] then
      local n = #reply
      reply[n + 1], reply[n + 2] = names[k], count_at(counts[k] or '', offset)
      reply[n + 3], reply[n + 4], reply[n + 5] = times[k], tiers[k], stats[k] or ''
      reply[2] = reply[2] + 1
    end
  end
end

local path = {}

local function holders()
  local reply = { 'HIT', 0 }
  local place = key ~= '' and call('HGET', P.blocks, key)
  if place then
    local segment, offset = sub(place, 1, 4), (read('>I2', place, 5))
    local r = call('HGET', P.segments, segment)
    if r and offset < (head_of(r)) then
      path = { segment, offset, 1 }
      push_holders(reply, read('>I4', place), offset, r)
    end
  end
  return reply
end

local reply = holders()
local version, serving, silent = serving_of(root, scheme_of(partition), expired_at, silent_at, known)
if reply[2] > 0 then
  return push_serving(push_path(reply, totals_key, path, want_path), version, serving, silent)
end
local stats = want_warm and stats_of(root, serving) or {}
local miss = { 'MISS', want_warm and #serving or 0 }
for k = 1, miss[2] do miss[#miss + 1] = stats[k] or '' end
return push_serving(miss, version, serving, silent)
