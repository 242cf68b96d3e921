#!lua flags=allow-oom
--[[
Take or keep the sweeper's lease: one server sweeps for all, another goes on when it dies.

KEYS
  1 lease       <prefix>:<layout>:{catalog}:lease; the token's key is derived from it
ARGV
  1 owner       who asks
  2 ttl_ms      how long the lease lasts without being renewed
REPLY
  OK, token       held by the asker; the token rises with every change of owner
  BUSY, token     held by somebody else
COST
  O(1).
]]
--- @include prelude
local lease = KEYS[1]
local owner, ttl_ms = ARGV[1], tonumber(ARGV[2])

local token_key = lease .. ':token'
local DAY_MS = 86400000

local held = call('GET', lease)
if held and held ~= owner then return { 'BUSY', tonumber(call('GET', token_key)) or 0 } end
if not held then call('INCR', token_key) end
call('SET', lease, owner, 'PX', ttl_ms)
call('PEXPIRE', token_key, DAY_MS)
return { 'OK', tonumber(call('GET', token_key)) or 0 }
