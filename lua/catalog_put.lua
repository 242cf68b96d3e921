#!lua flags=allow-oom
--[[
Tell the catalog what models hold, each by compare-and-set on the version that a script on the model returned.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 key_ttl_ms  backstop expiry of the keys
  2 n           entries that follow, 12 arguments each:
  * entry       tag, tenant tag, version, state, newest ms, due ms, coldest, stalest, prefixes, holdings, retained,
                payload (inference_cache.store.packing)
                retained  1: the keys live as long as the payload says; 0: as long as was told before, if anything was
                coldest, stalest: scores of what gives way first to a full index, to a quota (lib/order.lua)
                state  pending  about to be written: due at once; version and payload only if it is unknown
                       unfinished  about to be cleared in steps: due at once, if it is known at all
                       holds    has holdings; newest is its newest report
                       empty    has none; due says when to look at it again
                       gone     forget it if the version is still this one
REPLY
  OK, holdings of all models, n * distinct prefixes of the entry's tenant
COST
  O(n log models).
]]
--- @include prelude
local models = KEYS[1]
local key_ttl_ms, n = tonumber(ARGV[1]), tonumber(ARGV[2])

local root = sub(models, 1, -8) -- without ":models"
local newest_key, due_key, coldest_key = root .. ':newest', root .. ':due', root .. ':coldest'
local prefixes_key, holdings_key = root .. ':prefixes', root .. ':holdings'
local FIELDS = 12
local RETENTION_AT, RETENTION_END = 41, 49 -- where an entry says how long its keys live

local function newest_of(tenant)
  return root .. ':newest:' .. tenant
end

local function stalest_of(tenant)
  return root .. ':stalest:' .. tenant
end

local function read_entry(k)
  local p = 3 + (k - 1) * FIELDS
  return {
    tag = ARGV[p], tenant = ARGV[p + 1], version = tonumber(ARGV[p + 2]), state = ARGV[p + 3], newest = ARGV[p + 4],
    due = ARGV[p + 5], coldest = tonumber(ARGV[p + 6]), stalest = tonumber(ARGV[p + 7]),
    prefixes = tonumber(ARGV[p + 8]), holdings = tonumber(ARGV[p + 9]), retained = ARGV[p + 10] == '1', payload = ARGV[p + 11],
  }
end

-- The sums follow the entries: what an entry said before is taken off.
local function add_up(e, stored, prefixes, holdings)
  local old_prefixes, old_holdings = 0, 0
  if stored then old_prefixes, old_holdings = read('>I8I8', stored, 9) end
  if prefixes ~= old_prefixes and call('HINCRBY', prefixes_key, e.tenant, prefixes - old_prefixes) <= 0 then
    call('HDEL', prefixes_key, e.tenant)
  end
  if holdings ~= old_holdings then call('INCRBY', holdings_key, holdings - old_holdings) end
end

-- Only who has renewed a model's keys may say that they live longer.
local function store_entry(e, stored)
  local entry = write('>I8', e.version) .. e.payload
  if stored and not e.retained then
    entry = sub(entry, 1, RETENTION_AT - 1) .. sub(stored, RETENTION_AT, RETENTION_END) .. sub(entry, RETENTION_END + 1)
  end
  call('HSET', models, e.tag, entry)
end

local function place(key, score, tag)
  if score >= 0 then call('ZADD', key, score, tag) else call('ZREM', key, tag) end
end

local function forget_scores(e)
  call('ZREM', newest_key, e.tag)
  call('ZREM', newest_of(e.tenant), e.tag)
  call('ZREM', coldest_key, e.tag)
  call('ZREM', stalest_of(e.tenant), e.tag)
end

local put = {}

function put.pending(e, stored)
  if not stored then call('HSET', models, e.tag, write('>I8', 0) .. e.payload) end
  call('ZADD', due_key, 0, e.tag)
end

function put.unfinished(e, stored)
  if stored then call('ZADD', due_key, 0, e.tag) end
end

function put.holds(e, stored)
  add_up(e, stored, e.prefixes, e.holdings)
  store_entry(e, stored)
  call('ZADD', newest_key, e.newest, e.tag)
  call('ZADD', newest_of(e.tenant), e.newest, e.tag)
  call('ZADD', due_key, e.due, e.tag)
  place(coldest_key, e.coldest, e.tag)
  place(stalest_of(e.tenant), e.stalest, e.tag)
end

function put.empty(e, stored)
  add_up(e, stored, 0, 0)
  store_entry(e, stored)
  forget_scores(e)
  call('ZADD', due_key, e.due, e.tag)
end

function put.gone(e, stored)
  add_up(e, stored, 0, 0)
  call('HDEL', models, e.tag)
  forget_scores(e)
  call('ZREM', due_key, e.tag)
end

local UNORDERED = { pending = true, unfinished = true }

local function put_entry(e)
  local stored = call('HGET', models, e.tag)
  if not UNORDERED[e.state] and stored and (read('>I8', stored)) > e.version then return end
  put[e.state](e, stored)
end

local function renew(key)
  if call('PTTL', key) < key_ttl_ms * 7 / 8 then call('PEXPIRE', key, key_ttl_ms) end
end

call('EXISTS', root .. ':absent') -- refuses the whole call while the slot moves, see lib/keys.lua
if call('EXISTS', models) == 0 then call('DEL', prefixes_key, holdings_key) end -- sums of entries that were lost
local tenants = {}
for k = 1, n do
  local e = read_entry(k)
  put_entry(e)
  tenants[k] = e.tenant
end
for _, key in ipairs({ models, newest_key, due_key, coldest_key, prefixes_key, holdings_key }) do renew(key) end
for _, tenant in ipairs(tenants) do
  renew(newest_of(tenant))
  renew(stalest_of(tenant))
end
local sums = call('HMGET', prefixes_key, unpack(tenants))
local reply = { 'OK', tonumber(call('GET', holdings_key)) or 0 }
for k = 1, n do reply[k + 2] = tonumber(sums[k]) or 0 end
return reply
