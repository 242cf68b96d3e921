--- @include prelude
--- @include keys
-- What a model holds in all, with a version that rises with every change. Read once, written once a call.
local TOMBSTONE_MS = 60000
local NO_TIME = 9007199254740991 -- later than any time

local function largest_field(key, decode)
  local largest = 0
  for _, field in ipairs(call('HKEYS', key)) do
    largest = max(largest, decode(field) or 0)
  end
  return largest
end

-- Where the counters were lost but not what they numbered, go on after the largest number in use.
local function recover_counters(M, T)
  if call('EXISTS', M.slots) == 1 then T.slot = largest_field(M.slots, tonumber) end
  for _, partition in ipairs(call('SMEMBERS', M.partitions)) do
    T.segment = max(T.segment, largest_field(partition_keys(M.root, partition).segments, function(field)
      return #field == 4 and read('>I4', field)
    end))
  end
end

local function read_totals(M, now_us)
  local v = call('HMGET', M.totals, 'version', 'slot', 'segment', 'newest', 'prefixes', 'holdings', 'stats_due', 'hot',
    'tails', 'lfu')
  local T = {
    version = tonumber(v[1]) or 0,
    slot = tonumber(v[2]) or 0,
    segment = tonumber(v[3]) or 0,
    newest = tonumber(v[4]) or 0,
    prefixes = tonumber(v[5]) or 0,
    holdings = tonumber(v[6]) or 0,
    stats_due = tonumber(v[7]),
    had_due = v[7],
    hot = tonumber(v[8]) or 0,
    had_hot = v[8],
    tails_listed = v[9] == 'done',
    lfu = v[10],
    parts = {},
  }
  T.next_version = max(T.version + 1, now_us or 0)
  if not v[2] then recover_counters(M, T) end
  return T
end

local function add_to_totals(M, T, partition, prefixes, holdings)
  T.prefixes, T.holdings = T.prefixes + prefixes, T.holdings + holdings
  local part = T.parts[partition]
  if not part then
    local v = call('HMGET', M.totals, 'prefixes:' .. partition, 'holdings:' .. partition)
    part = { tonumber(v[1]) or 0, tonumber(v[2]) or 0 }
    T.parts[partition] = part
  end
  part[1], part[2] = part[1] + prefixes, part[2] + holdings
end

local function number(n)
  return string.format('%.0f', n)
end

-- Drop a partition's keys once nothing is mapped in it but the guard field of P:blocks.
local function drop_partition(M, partition)
  local P = partition_keys(M.root, partition)
  if call('HLEN', P.blocks) > 1 then return end
  call('DEL', P.blocks, P.segments, P.hashes, P.counts, P.hits)
  call('SREM', M.partitions, partition)
end

local function part_fields(M, T, fields)
  for partition, part in pairs(T.parts) do
    if part[1] <= 0 and part[2] <= 0 then
      call('HDEL', M.totals, 'prefixes:' .. partition, 'holdings:' .. partition)
      drop_partition(M, partition)
    else
      local n = #fields
      fields[n + 1], fields[n + 2] = 'prefixes:' .. partition, number(part[1])
      fields[n + 3], fields[n + 4] = 'holdings:' .. partition, number(part[2])
    end
  end
end

-- Fill in what a reply needs of a model that this call did not change.
local function look_at_rest(M, T)
  T.rows, T.retired, T.unbuilt = call('HLEN', M.stats), call('EXISTS', M.retired) == 1, call('EXISTS', M.rebuild) == 1
end

-- Of a model without holdings, statistics and unfinished clears only the version stays for a minute, so that a
-- late word about it in the catalog is known to be late.
local function bury(M, T)
  call('DEL', M.totals, M.tails, M.rebuild)
  call('HSET', M.totals, 'version', number(T.version))
  call('PEXPIRE', M.totals, TOMBSTONE_MS)
end

-- An order that ran empty is gone, and born again without an expiry: it gets that of its model.
local function keep_expiry(M)
  for _, key in ipairs({ M.order, M.credited }) do
    if call('PTTL', key) == -1 then
      local ttl_ms = call('PTTL', M.totals)
      if ttl_ms > 0 then call('PEXPIRE', key, ttl_ms) end
    end
  end
end

local function write_totals(M, T)
  look_at_rest(M, T)
  T.version = T.next_version
  if T.holdings <= 0 then T.newest = 0 end
  if T.rows == 0 then T.stats_due = nil end
  local fields = {
    'version', number(T.version), 'slot', T.slot, 'segment', T.segment, 'newest', number(T.newest),
    'prefixes', number(T.prefixes), 'holdings', number(T.holdings),
  }
  part_fields(M, T, fields)
  if T.holdings <= 0 and T.rows == 0 and not T.retired then return bury(M, T) end
  if T.stats_due then
    fields[#fields + 1] = 'stats_due'
    fields[#fields + 1] = number(T.stats_due)
  end
  if T.hot > 0 then
    fields[#fields + 1] = 'hot'
    fields[#fields + 1] = number(T.hot)
  end
  call('HSET', M.totals, unpack(fields))
  keep_expiry(M)
  if T.had_due and not T.stats_due then call('HDEL', M.totals, 'stats_due') end
  if T.had_hot and T.hot <= 0 then call('HDEL', M.totals, 'hot') end
end

local function first_score(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] and first[1] ~= '' then return tonumber(first[2]) end
end

-- The model's state as every writing script reports it, appended to its reply: version, prefixes, holdings, statistics
-- rows, newest report, earliest time that may expire (0: unfinished work), then the scores of what gives way first to a full
-- index and to a quota (lib/order.lua; -1: nothing, or no such index).
local function push_state(reply, M, T)
  if not T.rows then look_at_rest(M, T) end
  local due = T.stats_due
  local oldest = call('ZRANGE', M.oldest, 0, 0, 'WITHSCORES')
  if oldest[2] then due = min(due or NO_TIME, tonumber(oldest[2])) end
  if T.retired or T.unbuilt then due = 0 end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = T.version, T.prefixes, T.holdings
  reply[n + 4], reply[n + 5], reply[n + 6] = T.rows, T.newest, due or 0
  reply[n + 7] = first_score(M.order) or first_score(M.credited) or -1
  reply[n + 8] = T.tails_listed and first_score(M.tails) or -1
  return reply
end
