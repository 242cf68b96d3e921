#!lua flags=no-writes
--[[
List the models that the catalog knows, a page at a time.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 cursor      "0" at first, then what the reply says
REPLY
  OK, cursor, tag, due ms, version, payload, ...      cursor "0": that was the last page. A model may be listed twice.
COST
  some 256 models a call.
]]
--- @include prelude
local models = KEYS[1]
local cursor = ARGV[1]
local PAGE = 256

local due_key = sub(models, 1, -8) .. ':due' -- without ":models"

local page = call('HSCAN', models, cursor, 'COUNT', PAGE)
local reply = { 'OK', page[1] }
for k = 1, #page[2], 2 do
  local tag, entry, n = page[2][k], page[2][k + 1], #reply
  reply[n + 1], reply[n + 2] = tag, call('ZSCORE', due_key, tag) or '0'
  reply[n + 3], reply[n + 4] = string.format('%.0f', (read('>I8', entry))), sub(entry, 9)
end
return reply
