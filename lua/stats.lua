#!lua
--[[
Replace a replica's statistics row, or only say that the replica lives.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 replica     replica id
  2 alive_ms    newest sign of life
  3 row         packed row (inference_cache.store.packing), or "" to set alive_ms in the row there is
  4 key_ttl_ms  backstop expiry of the keys
  5 now_us      floor of the version
REPLY
  OK, state (lib/totals push_state)
  ABSENT, state      there was no row to set alive_ms in; nothing was written
COST
  O(1).
]]
--- @include prelude
--- @include keys
--- @include totals
local M = model_keys(KEYS[1])
local replica, alive_ms, row = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local key_ttl_ms, now_us = tonumber(ARGV[4]), tonumber(ARGV[5])

refuse_while_moving(M.root)
local T = read_totals(M, now_us)
if row == '' then
  local stored = call('HGET', M.stats, replica)
  if not stored then
    return push_state({ 'ABSENT' }, M, T)
  end
  row = write('>I8', alive_ms) .. sub(stored, 9)
end
call('HSET', M.stats, replica, row)
T.stats_due = min(T.stats_due or NO_TIME, alive_ms)
write_totals(M, T)
for _, key in ipairs({ M.stats, M.totals }) do
  if call('PTTL', key) < key_ttl_ms * 7 / 8 then call('PEXPIRE', key, key_ttl_ms) end
end
return push_state({ 'OK' }, M, T)
