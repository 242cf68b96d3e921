#!lua flags=allow-oom
--[[
Take the holdings of a model's retired slots out of the segments: one bounded step.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 now_us      floor of the version
REPLY
  OK, holdings removed, n, n * (partition, segment that should be rebuilt), state (lib/totals push_state)
  MORE, holdings removed, n, n * (partition, segment that should be rebuilt), state      more are retired: call again
COST
  at most 64 segments and some 1536 unmapped blocks a call.
]]
--- @include prelude
--- @include freeing
local M = model_keys(KEYS[1])
local now_us = tonumber(ARGV[1])

refuse_while_moving(M.root)
local T = read_totals(M, now_us)
local freed, budget = 0, open_budget()
local slot = call('HRANDFIELD', M.retired)
if slot then
  freed = free_slot(M, T, tonumber(slot), budget)
  write_totals(M, T)
end
local more = call('EXISTS', M.retired) == 1
return push_state(push_rebuild({ more and 'MORE' or 'OK', freed }, budget), M, T)
