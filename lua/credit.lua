#!lua flags=allow-oom
--[[
Credit stretches that delivered hits (LFU): each counts its hits and the deepest block they reached.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 partition   escaped "<scheme>/<adapter>"
  2 threshold   credits from which a block is hot
  3 n           credits that follow, 5 arguments each:
  * credit      segment, depth (blocks of it that were hit), version of the model at the hit, hits, replica
REPLY
  OK, credits applied      the others named a stretch that is gone, or that began after the hit
COST
  O(n + intervals of the segments credited), at most 128 credits a call.
]]
--- @include prelude
--- @include keys
--- @include record
--- @include totals
--- @include order
local M = model_keys(KEYS[1])
local partition, threshold, n = ARGV[1], ARGV[2], tonumber(ARGV[3])

local P = partition_keys(M.root, partition)
local MAX_CREDITS = 4294967295

local function read_credit(k)
  local p = k * 5 - 1
  return ARGV[p], tonumber(ARGV[p + 1]), tonumber(ARGV[p + 2]), tonumber(ARGV[p + 3]), ARGV[p + 4]
end

local hot = 0

local function apply(segment, depth, version, hits, replica)
  local slot = tonumber(call('HGET', M.replicas, replica))
  local r = slot and call('HGET', P.segments, segment)
  local to, time
  if r then to, time = tail_of(r, slot) end
  if not to then return 0 end
  local field = segment .. write('>I4', slot)
  local began, credits, deepest = read_hits(call('HGET', P.hits, field))
  if began > version then return 0 end
  local value = write(HITS, began, min(credits + hits, MAX_CREDITS), max(deepest, min(depth, to)))
  call('HSET', P.hits, field, value)
  settle_stretch(M, partition, call('HGET', P.hashes, segment) or '', replica, slot, nil, to, time, value)
  hot = hot + settle_hot(P, segment, r)
  return 1
end

refuse_while_moving(M.root)
local applied = 0
if call('EXISTS', P.segments) == 1 then
  call('HSET', P.hits, 'threshold', threshold)
  call('HSET', M.totals, 'lfu', 1)
  for k = 1, n do applied = applied + apply(read_credit(k)) end
  extend_life(P.hits, max(call('PTTL', P.blocks), 1))
  keep_expiry(M)
  if hot ~= 0 then call('HINCRBY', M.totals, 'hot', hot) end
end
return { 'OK', applied }
