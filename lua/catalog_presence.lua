#!lua flags=no-writes
--[[
Read how recently anything was reported: to a model, to a tenant, and to whatever models were reported last.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 tag         the model's tag
  2 tenant      the tenant's tag
  3 offset      models to skip, newest first
  4 limit       models to list
REPLY
  OK, newest ms of the model or "", newest ms of the tenant or "", newest ms, payload, ...     of the listed models that hold
                                                                                              something, newest first
COST
  O(limit + log models).
]]
--- @include prelude
local models = KEYS[1]
local tag, tenant, offset, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local root = sub(models, 1, -8) -- without ":models"

local function score_of(key)
  return call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or ''
end

local reply = { 'OK', call('ZSCORE', root .. ':newest', tag) or '', score_of(root .. ':newest:' .. tenant) }
local listed = call('ZREVRANGE', root .. ':newest', offset, offset + limit - 1, 'WITHSCORES')
for k = 1, #listed, 2 do
  local entry = call('HGET', models, listed[k])
  reply[#reply + 1] = listed[k + 1]
  reply[#reply + 1] = entry and sub(entry, 9) or ''
end
return reply
