#!lua flags=no-writes
--[[
Name the model whose turn it is to give way, and when the next one's turn comes.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 tenant      the tenant's tag: who gives way to its quota; "*" for all: who gives way to a full index
  2 skip        models to pass over: their turn, but their node does not answer
REPLY
  OK, holdings of all models, distinct prefixes of the tenant, payload or "", bar or ""
  UNLISTED, holdings of all models, distinct prefixes of the tenant, payload, ""      a model of the tenant has not listed
                                                                                   its segments yet (trim does)
      payload: the model (inference_cache.store.packing)
      bar: the score at which the next model's turn comes, after "(" when the next one goes first at equal scores
COST
  O(log models + skip); O(models of the tenant) while some are unlisted.
]]
--- @include prelude
local models = KEYS[1]
local tenant, skip = ARGV[1], tonumber(ARGV[2])

local root = sub(models, 1, -8) -- without ":models"
local order = tenant == '*' and root .. ':coldest' or root .. ':stalest:' .. tenant

-- Models of the tenant that have not listed their segments, but for those to be passed over.
local function unlisted()
  local newest = root .. ':newest:' .. tenant
  if tenant == '*' or call('ZCARD', newest) <= call('ZCARD', order) then return nil end
  local missing = call('ZDIFF', 2, newest, order)
  if skip < #missing then return missing[skip + 1] end
  skip = skip - #missing
  return nil
end

local function payload_of(tag)
  local entry = tag and call('HGET', models, tag)
  return entry and sub(entry, 9) or ''
end

local holdings = tonumber(call('GET', root .. ':holdings')) or 0
local prefixes = tenant ~= '*' and tonumber(call('HGET', root .. ':prefixes', tenant)) or 0
local missing = unlisted()
if missing then return { 'UNLISTED', holdings, prefixes, payload_of(missing), '' } end
local first = call('ZRANGE', order, skip, skip + 1, 'WITHSCORES')
local bar = first[4] or ''
if first[3] and first[3] < first[1] then bar = '(' .. bar end
return { 'OK', holdings, prefixes, payload_of(first[1]), bar }
