#!lua flags=no-writes
--[[
Read the policy snapshot, unless it is the one that the caller knows.

KEYS
  1 snapshot    <prefix>:<layout>:{policy}:snapshot
ARGV
  1 generation  of the snapshot that the caller knows, 0 for none
  2 digest      of it
  3 directory   directory digest of it
REPLY
  OK, generation, digest, source, host, written ms, directory digest, body
  SAME          the stored one is the one that is known
  ABSENT        none is stored
COST
  O(1); O(body) when it is sent.
]]
--- @include prelude
local snapshot = KEYS[1]
local generation, digest, directory = ARGV[1], ARGV[2], ARGV[3]

local stored = call('HMGET', snapshot, 'generation', 'digest', 'source', 'host', 'written_ms', 'directory')
if not stored[1] then return { 'ABSENT' } end
if stored[1] == generation and stored[2] == digest and stored[6] == directory then return { 'SAME' } end
return {
  'OK', tonumber(stored[1]), stored[2], stored[3], stored[4], tonumber(stored[5]), stored[6], call('HGET', snapshot, 'body')
}
