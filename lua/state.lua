#!lua flags=no-writes
--[[
Read a model's statistics rows and how many distinct prefixes it has.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
REPLY
  OK, prefixes, hot prefixes, replica, row, replica, row, ...
COST
  O(statistics rows).
]]
--- @include prelude
--- @include keys
local root = model_root(KEYS[1])
local totals = call('HMGET', KEYS[1], 'prefixes', 'hot')
local reply = { 'OK', tonumber(totals[1]) or 0, tonumber(totals[2]) or 0 }
for _, value in ipairs(call('HGETALL', root .. ':stats')) do reply[#reply + 1] = value end
return reply
