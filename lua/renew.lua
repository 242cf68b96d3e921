#!lua flags=allow-oom
--[[
Let the keys of a model live longer, after its tenant's TTL was raised. One bounded step.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 key_ttl_ms  backstop expiry of the keys
  2 cursor      "0" at first, then what the reply says
REPLY
  OK, cursor      "0" when done, else call again with it
COST
  O(partitions + 64 slots with their partitions) a call.
]]
--- @include prelude
--- @include keys
local M = model_keys(KEYS[1])
local key_ttl_ms, cursor = tonumber(ARGV[1]), ARGV[2]

local function renew_model()
  for name, key in pairs(M) do
    if name ~= 'root' then extend_life(key, key_ttl_ms) end
  end
  for _, partition in ipairs(call('SMEMBERS', M.partitions)) do
    local P = partition_keys(M.root, partition)
    local serving, count = scope_keys(M.root, scheme_of(partition))
    for _, key in ipairs({ P.blocks, P.segments, P.hashes, P.counts, P.hits, serving, count }) do
      extend_life(key, key_ttl_ms)
    end
  end
end

refuse_while_moving(M.root)
if cursor == '0' and call('HLEN', M.totals) > 1 then renew_model() end
local page = call('HSCAN', M.slots, cursor, 'COUNT', 64)
for k = 1, #page[2], 2 do
  local slot = page[2][k]
  local holdings_key = slot_key(M.root, slot)
  extend_life(holdings_key, key_ttl_ms)
  for _, partition in ipairs(call('HKEYS', holdings_key)) do
    extend_life(partition_keys(M.root, partition).held .. slot, key_ttl_ms)
  end
end
return { 'OK', page[1] }
