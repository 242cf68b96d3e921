--- @include prelude
--- @include keys
-- What a lookup says of replicas: their ids, statistics and who serves the scope.

local function many(command, key, fields)
  local out = {}
  for i = 1, #fields, 4000 do
    local part = call(command, key, unpack(fields, i, min(i + 3999, #fields)))
    for k = 1, #part do out[i + k - 1] = part[k] end
  end
  return out
end

-- Names of slots; a retired slot has none (false).
local function names_of(root, slots)
  if #slots == 0 then return {} end
  return many('HMGET', root .. ':slots', slots)
end

local function stats_of(root, replicas)
  if #replicas == 0 then return {} end
  return many('HMGET', root .. ':stats', replicas)
end

-- Replicas that serve a scope and reported there after `expired_at`.
local function serving_of(root, scheme, expired_at)
  local serving = scope_keys(root, scheme)
  return call('ZRANGEBYSCORE', serving, '(' .. expired_at, '+inf')
end
