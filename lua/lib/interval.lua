--- @include prelude
-- A segment's record: who holds which stretch of it.
--
--   u16 length    blocks mapped into the segment
--   u16 held      of them, blocks that at least one slot holds
--   then 15 bytes an interval, ordered by (slot, from), never overlapping within a slot:
--   u32 slot, u16 from, u16 to (exclusive), u48 time in ms, u8 tier
local HEAD, WIDTH, INTERVAL = 4, 15, '>I4I2I2I6B'

local function head_of(r)
  local length, held = read('>I2I2', r)
  return length, held
end
