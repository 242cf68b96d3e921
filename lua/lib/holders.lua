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

-- Replicas that serve a scope and reported there after `expired_at`; and those of them that have statistics but
-- gave no sign of life after `silent_at` (nil: nobody is silent). A report is a sign of life too. Returns the
-- version of the membership first, "" when somebody of it is left out; no ids (nil) when the caller knows that version
-- and nobody of it has expired.
local function serving_of(root, scheme, expired_at, silent_at, known)
  local serving, count = scope_keys(root, scheme)
  local version = call('HGET', count, 'v') or ''
  if not silent_at then
    if known ~= '' and known == version and call('ZCOUNT', serving, '-inf', expired_at) == 0 then return version end
    local ids = call('ZRANGEBYSCORE', serving, '(' .. expired_at, '+inf')
    return #ids == call('ZCARD', serving) and version or '', ids, {}
  end
  local scored = call('ZRANGEBYSCORE', serving, '(' .. expired_at, '+inf', 'WITHSCORES')
  local ids, silent = {}, {}
  for k = 1, #scored, 2 do ids[#ids + 1] = scored[k] end
  local rows = stats_of(root, ids)
  for k = 1, #ids do
    local alive_ms = rows[k] and (read('>I8', rows[k]))
    if alive_ms and max(alive_ms, tonumber(scored[2 * k])) <= silent_at then silent[#silent + 1] = ids[k] end
  end
  return '', ids, silent
end

-- Append the serving replicas to a reply: the version of the membership, then -1 if the caller knows them, else how many of
-- them are silent, the silent ones, and all of them.
local function push_serving(reply, version, serving, silent)
  reply[#reply + 1] = version
  reply[#reply + 1] = serving and #silent or -1
  if not serving then return reply end
  for _, replica in ipairs(silent) do reply[#reply + 1] = replica end
  for _, replica in ipairs(serving) do reply[#reply + 1] = replica end
  return reply
end

-- Append where a lookup found its blocks, for whoever credits them: n, the model's version (0 when nobody asked), then
-- n * (segment, offset, blocks).
local function push_path(reply, totals_key, path, wanted)
  reply[#reply + 1] = wanted and #path / 3 or 0
  reply[#reply + 1] = wanted and tonumber(call('HGET', totals_key, 'version')) or 0
  if wanted then
    for _, value in ipairs(path) do reply[#reply + 1] = value end
  end
  return reply
end
