#!lua flags=allow-oom
--[[
Store the policy snapshot by compare-and-set, and tell whoever listens.

The last accepted write wins. Allowed on a full Redis: the new policies may be what makes room there.

KEYS
  1 snapshot    <prefix>:<layout>:{policy}:snapshot; the channel's name is derived from it
ARGV
  1 mode        push       store it; an identical body keeps the generation
                directory  likewise, but only when this directory is not the last one that was written
                restore    write back what Redis lost: only when nothing or a lower generation is stored
  2 generation  of the snapshot that the caller holds; in restore mode of the one that is written back
  3 digest      of the body
  4 body        canonical form of the policies
  5 source      kind of the writer
  6 host        name of the writer
  7 written_ms  when it was accepted, ms since 1970
  8 directory   directory digest to record; in push mode only where Redis has lost the recorded one
REPLY
  OK, generation, digest, source, host, written ms, directory digest       stored
  SAME, likewise, of what is stored                                        it has this body already
  REFUSED                                                                  the mode's condition does not hold
COST
  O(body).
]]
--- @include prelude
local snapshot = KEYS[1]
local mode, generation, digest, body = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local source, host, written_ms, directory = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local channel = sub(snapshot, 1, -10) .. ':changed' -- without ":snapshot"
local stored = call('HMGET', snapshot, 'generation', 'digest', 'source', 'host', 'written_ms', 'directory')
local stored_generation = tonumber(stored[1]) or 0
local lost = stored_generation < generation
local recorded = stored[6] or ''

if mode == 'restore' and not lost then return { 'REFUSED' } end
if mode == 'directory' and recorded == directory then return { 'REFUSED' } end
if mode == 'push' and not lost then directory = recorded end

if not lost and stored[2] == digest then
  if directory ~= recorded then call('HSET', snapshot, 'directory', directory) end
  return { 'SAME', stored_generation, digest, stored[3], stored[4], tonumber(stored[5]), directory }
end

if mode ~= 'restore' then generation = max(stored_generation, generation) + 1 end
local number = string.format('%.0f', generation)
call(
  'HSET', snapshot, 'generation', number, 'digest', digest, 'body', body, 'source', source, 'host', host,
  'written_ms', written_ms, 'directory', directory
)
redis.pcall('PUBLISH', channel, number) -- only a hint: a user who may not publish may still store
return { 'OK', generation, digest, source, host, tonumber(written_ms), directory }
