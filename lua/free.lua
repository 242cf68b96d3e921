#!lua flags=allow-oom
--[[
Take the holdings of a retired slot out of the segments: one bounded step.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 slot        as "clear" returned it
  2 now_us      floor of the version
REPLY
  OK, holdings removed, n, n * (partition, segment that should be rebuilt), state (lib/totals push_state)
  MORE, holdings removed, n, n * (partition, segment that should be rebuilt), state      call again
COST
  at most 64 segments and some 2048 unmapped blocks a call.
]]
--- @include prelude
--- @include freeing
local M = model_keys(KEYS[1])
local slot, now_us = tonumber(ARGV[1]), tonumber(ARGV[2])

refuse_while_moving(M.root)
local T = read_totals(M)
local freed, more, budget = 0, false, open_budget()
if call('SISMEMBER', M.retired, slot) == 1 then
  freed, more = free_slot(M, T, slot, budget)
  write_totals(M, T, now_us)
end
return push_state(push_rebuild({ more and 'MORE' or 'OK', freed }, budget), M, T)
