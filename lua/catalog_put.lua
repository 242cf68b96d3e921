#!lua flags=allow-oom
--[[
Tell the catalog what models hold, each by compare-and-set on the version that a script on the model returned.

KEYS
  1 models      <prefix>:<layout>:{catalog}:models; the catalog's other keys are derived from it
ARGV
  1 key_ttl_ms  backstop expiry of the keys
  2 n           entries that follow, 7 arguments each:
  * entry       tag, tenant tag, version, state, newest ms, due ms, payload (inference_cache.store.packing)
                state  pending  about to be written: due at once; version and payload only if it is unknown
                       unfinished  about to be cleared in steps: due at once, if it is known at all
                       holds    has holdings; newest is its newest report
                       empty    has none; due says when to look at it again
                       gone     forget it if the version is still this one
REPLY
  OK, entries that changed something
COST
  O(n log models).
]]
--- @include prelude
local models = KEYS[1]
local key_ttl_ms, n = tonumber(ARGV[1]), tonumber(ARGV[2])

local root = sub(models, 1, -8) -- without ":models"
local newest_key, due_key = root .. ':newest', root .. ':due'

local function tenant_key(tenant)
  return root .. ':newest:' .. tenant
end

local function stored_version(tag)
  local entry = call('HGET', models, tag)
  if entry then return (read('>I8', entry)) end
end

local put = {}

function put.pending(tag, tenant, version, newest, due, payload, stored)
  if not stored then call('HSET', models, tag, write('>I8', 0) .. payload) end
  call('ZADD', due_key, 0, tag)
  return true
end

function put.unfinished(tag, tenant, version, newest, due, payload, stored)
  if stored then call('ZADD', due_key, 0, tag) end
  return stored ~= nil
end

function put.holds(tag, tenant, version, newest, due, payload, stored)
  if stored and stored > version then return false end
  call('HSET', models, tag, write('>I8', version) .. payload)
  call('ZADD', newest_key, newest, tag)
  call('ZADD', tenant_key(tenant), newest, tag)
  call('ZADD', due_key, due, tag)
  return true
end

function put.empty(tag, tenant, version, newest, due, payload, stored)
  if stored and stored > version then return false end
  call('HSET', models, tag, write('>I8', version) .. payload)
  call('ZREM', newest_key, tag)
  call('ZREM', tenant_key(tenant), tag)
  call('ZADD', due_key, due, tag)
  return true
end

function put.gone(tag, tenant, version, newest, due, payload, stored)
  if stored and stored > version then return false end
  call('HDEL', models, tag)
  call('ZREM', newest_key, tag)
  call('ZREM', tenant_key(tenant), tag)
  call('ZREM', due_key, tag)
  return true
end

local function renew(key)
  if call('PTTL', key) < key_ttl_ms * 7 / 8 then call('PEXPIRE', key, key_ttl_ms) end
end

local touched, tenants = { models, newest_key, due_key }, {}
for k = 1, n do
  local tenant = ARGV[k * 7 - 3]
  if not tenants[tenant] then
    tenants[tenant] = true
    touched[#touched + 1] = tenant_key(tenant)
  end
end
call('EXISTS', root .. ':absent') -- refuses the whole call while the slot moves, see lib/keys.lua

local changed = 0
for k = 1, n do
  local p = k * 7 - 4
  local tag, tenant, version, state = ARGV[p], ARGV[p + 1], tonumber(ARGV[p + 2]), ARGV[p + 3]
  if put[state](tag, tenant, version, ARGV[p + 4], ARGV[p + 5], ARGV[p + 6], stored_version(tag)) then
    changed = changed + 1
  end
end
for _, key in ipairs(touched) do renew(key) end
return { 'OK', changed }
