#!lua flags=allow-oom
--[[
Name the model whose turn it is to give way, and when the next one's turn comes, and claim a part of what is too much.

What one server has claimed is no longer too much for the others, so that servers that make room at once remove what is
too much once between them. A claim ends with the server's next call, or by itself when the server is dead.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 tenant      the tenant's tag: who gives way to its quota; "*" for all: who gives way to a full index
  2 skip        models to pass over: their turn, but their node does not answer
  3 limit       how much may stay: holdings of all models, or distinct prefixes of the tenant
  4 most        how much to claim at most
  5 claimant    who asks; its last claim here is over
  6 now_ms      the time
REPLY
  OK, holdings of all models, distinct prefixes of the tenant, payload or "", bar or "", claimed
  UNLISTED, holdings of all models, distinct prefixes of the tenant, payload, "", 0      a model of the tenant has not
                                                                         listed its segments yet (trim does)
      claimed: what is too much and nobody else's claim, at most `most`; 0 when nothing is, or nobody is left
      payload: the model (inference_cache.store.packing)
      bar: the score at which the next model's turn comes, after "(" when the next one goes first at equal scores
COST
  O(log models + skip + claims of servers that make room now); O(models of the tenant) while some are unlisted.
]]
--- @include prelude
local models = KEYS[1]
local tenant, skip, limit, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local claimant, now_ms = ARGV[5], tonumber(ARGV[6])
local CLAIM_MS = 5000 -- longer than a step of making room lasts

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

local claims_key = root .. ':claims:' .. tenant

-- What others have claimed and not done yet.
local function claimed_by_others()
  local claims, sum = call('HGETALL', claims_key), 0
  for k = 1, #claims, 2 do
    local until_ms, number = read('>I8I4', claims[k + 1])
    if until_ms <= now_ms then call('HDEL', claims_key, claims[k]) else sum = sum + number end
  end
  return sum
end

local function claim(number)
  call('HSET', claims_key, claimant, write('>I8I4', now_ms + CLAIM_MS, number))
  call('PEXPIRE', claims_key, 2 * CLAIM_MS)
end

call('EXISTS', root .. ':absent') -- refuses the whole call while the slot moves, see lib/keys.lua
call('HDEL', claims_key, claimant)
local holdings = tonumber(call('GET', root .. ':holdings')) or 0
local prefixes = tenant ~= '*' and tonumber(call('HGET', root .. ':prefixes', tenant)) or 0
local excess = (tenant == '*' and holdings or prefixes) - limit - claimed_by_others()
if excess <= 0 then return { 'OK', holdings, prefixes, '', '', 0 } end
local missing = unlisted()
if missing then return { 'UNLISTED', holdings, prefixes, payload_of(missing), '', 0 } end
local first = call('ZRANGE', order, skip, skip + 1, 'WITHSCORES')
if not first[1] then return { 'OK', holdings, prefixes, '', '', 0 } end
local bar, mine = first[4] or '', min(excess, most)
if first[3] and first[3] < first[1] then bar = '(' .. bar end
claim(mine)
return { 'OK', holdings, prefixes, payload_of(first[1]), bar, mine }
