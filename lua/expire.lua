#!lua flags=allow-oom
--[[
Sweep one model: remove expired holdings and statistics rows, and finish clears that a dead server left. One bounded step.

KEYS
  1 totals      <model>:totals; the model's other keys are derived from it
ARGV
  1 expired_at  ms; what was reported at this time or before is removed
  2 cursor      where the scan of the statistics rows goes on, "0" at first, "" when it is through
  3 now_us      floor of the version
REPLY
  OK, cursor, holdings removed, statistics rows removed, n, n * (partition, segment that should be rebuilt), state
  MORE, cursor, holdings removed, statistics rows removed, n, n * (partition, segment ...), state      call again
COST
  at most 64 segments, some 2048 unmapped blocks and some 100 statistics rows a call.
]]
--- @include prelude
--- @include freeing
local M = model_keys(KEYS[1])
local expired_at, cursor, now_us = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local MAX_ROWS = 100

local budget = open_budget()

-- What the list of a slot's segments no longer tells (its key was lost) is given up: the slot loses its name, so that nothing
-- of it is evidence any more.
local function give_up(T, slot, partition, replica)
  local lost = tonumber(call('HGET', slot_key(M.root, slot), partition)) or 0
  settle_removal(M, T, partition, slot, replica, 0, lost)
end

local function expire_slot(T, slot, partition)
  local replica = call('HGET', M.slots, slot)
  if not replica then
    call('ZREM', M.oldest, oldest_member(slot, partition))
    return 0, false
  end
  local P = partition_keys(M.root, partition)
  local removal = open_removal(M, partition, slot, budget)
  local more = drop_oldest(removal, expired_at)
  settle_removal(M, T, partition, slot, replica, removal.prefixes, removal.holdings)
  if call('EXISTS', P.held .. slot) == 0 then give_up(T, slot, partition, replica) end
  forget_if_idle(M, slot, replica)
  return removal.holdings, more
end

local function expire_holdings(T)
  local retired = call('SRANDMEMBER', M.retired)
  if retired then
    local freed = free_slot(M, T, tonumber(retired), budget)
    return freed, true
  end
  local due = call('ZRANGEBYSCORE', M.oldest, '-inf', expired_at, 'LIMIT', 0, 1)
  if #due == 0 then return 0, false end
  local removed = expire_slot(T, (read('>I4', due[1])), sub(due[1], 5))
  return removed, true
end

-- Scan some statistics rows; returns how many were removed.
local function expire_rows(T)
  if cursor == '' then return 0 end
  local page, removed, earliest = call('HSCAN', M.stats, cursor, 'COUNT', MAX_ROWS), 0, NO_TIME
  for k = 1, #page[2], 2 do
    local alive_ms = read('>I8', page[2][k + 1])
    if alive_ms <= expired_at then
      removed = removed + call('HDEL', M.stats, page[2][k])
    else
      earliest = min(earliest, alive_ms)
    end
  end
  local whole = cursor == '0' and page[1] == '0'
  cursor = page[1] == '0' and '' or page[1]
  -- Every surviving row was alive after expired_at; the exact earliest one is known when one page was all.
  if cursor == '' then T.stats_due = whole and earliest or expired_at + 1 end
  return removed
end

refuse_while_moving(M.root)
local T = read_totals(M)
local scan_rows = cursor ~= '' and T.stats_due and T.stats_due <= expired_at
if not scan_rows then cursor = '' end
local rows = expire_rows(T)
local removed, more = expire_holdings(T)
if removed > 0 or rows > 0 or more or scan_rows then
  write_totals(M, T, now_us)
end
local status = (more or cursor ~= '') and 'MORE' or 'OK'
return push_state(push_rebuild({ status, cursor, removed, rows }, budget), M, T)
