-- Names that every script uses: Redis' call and the string functions of the hot loops.
local call = redis.call
local sub, char, concat = string.sub, string.char, table.concat
local write, read = struct.pack, struct.unpack
local floor, min, max = math.floor, math.min, math.max
