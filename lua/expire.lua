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
  at most 64 segments, some 1536 unmapped blocks and some 100 statistics rows a call.
]]
--- @include prelude
--- @include sweeping
local M = model_keys(KEYS[1])
local expired_at, cursor, now_us = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local MAX_ROWS = 100

local budget = open_budget()

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
local T = read_totals(M, now_us)
local scan_rows = cursor ~= '' and T.stats_due and T.stats_due <= expired_at
if not scan_rows then cursor = '' end
local rows = expire_rows(T)
recall_rebuilds(M, budget)
local removed, more = expire_some(M, T, expired_at, budget)
if removed > 0 or rows > 0 or more or scan_rows then
  write_totals(M, T)
end
local status = (more or cursor ~= '') and 'MORE' or 'OK'
return push_state(push_rebuild({ status, cursor, removed, rows }, budget), M, T)
