#!lua flags=no-writes
--[[
List models that may have something to sweep, the most urgent first.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 until       ms; models due at this time or before
  2 offset      models to skip
  3 limit       models to list
REPLY
  OK, tag, due ms, version, payload, ...
COST
  O(limit + log models).
]]
--- @include prelude
local models = KEYS[1]
local until_ms, offset, limit = ARGV[1], ARGV[2], ARGV[3]

local root = sub(models, 1, -8) -- without ":models"

local reply = { 'OK' }
local due = call('ZRANGEBYSCORE', root .. ':due', '-inf', until_ms, 'WITHSCORES', 'LIMIT', offset, limit)
for k = 1, #due, 2 do
  local entry = call('HGET', models, due[k])
  local n = #reply
  reply[n + 1], reply[n + 2] = due[k], due[k + 1]
  reply[n + 3] = entry and string.format('%.0f', (read('>I8', entry))) or '0'
  reply[n + 4] = entry and sub(entry, 9) or ''
end
return reply
