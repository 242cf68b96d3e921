--- @include prelude
-- Token counts of what one slot holds in one segment, run-length coded, 10 bytes a run:
--   u16 start, i32 first, i32 step      block start + i has first + i * step tokens
-- A run ends where the next begins. Stretches that the slot does not hold may carry anything.
local RUN, RUN_WIDTH = '>I2i4i4', 10

local function counts_field(segment, slot)
  return write('>I4I4', segment, slot)
end

-- Append a run of known length, joining it to the one before where the numbers go on.
local function push_counts(runs, start, first, step, size)
  local n = #runs
  if n > 0 and runs[n - 3] + runs[n] == start then
    local last_first, last_step, last_size = runs[n - 2], runs[n - 1], runs[n]
    local jump = first - (last_first + (last_size - 1) * last_step)
    if (last_size == 1 or last_step == jump) and (size == 1 or step == jump) then
      runs[n - 1], runs[n] = jump, last_size + size
      return
    end
  end
  runs[n + 1], runs[n + 2], runs[n + 3], runs[n + 4] = start, first, step, size
end

-- Copy what a stored value says about [from, to) to `runs`, moved by `shift`; `length` bounds its last run. Begins at
-- byte `p` of the value and returns where the next copy, of something later, may begin.
local function copy_counts(runs, value, length, from, to, shift, p)
  local n = #value
  while p <= n do
    local start, first, step = read(RUN, value, p)
    local stop = length
    if p + RUN_WIDTH <= n then stop = min(stop, (read('>I2', value, p + RUN_WIDTH))) end
    local a, b = max(start, from), min(stop, to)
    if a < b then push_counts(runs, a + shift, first + (a - start) * step, step, b - a) end
    if stop > to then return p end
    p = p + RUN_WIDTH
  end
  return p
end

local function encode_counts(runs)
  local out = {}
  for k = 1, #runs, 4 do
    out[#out + 1] = write(RUN, runs[k], runs[k + 1], runs[k + 2])
  end
  return concat(out)
end

-- A stored value with fresh runs (flat start, first, step, size; ordered, apart) in place of what it said there.
local function merge_counts(value, length, fresh)
  local runs, at, p = {}, 0, 1
  for k = 1, #fresh, 4 do
    p = copy_counts(runs, value, length, at, fresh[k], 0, p)
    push_counts(runs, fresh[k], fresh[k + 1], fresh[k + 2], fresh[k + 3])
    at = fresh[k] + fresh[k + 3]
  end
  copy_counts(runs, value, length, at, length, 0, p)
  return encode_counts(runs)
end

local function count_at(value, offset)
  local tokens = 0
  for p = 1, #value, RUN_WIDTH do
    local start, first, step = read(RUN, value, p)
    if start > offset then break end
    tokens = first + (offset - start) * step
  end
  return tokens
end
