--- @include prelude
-- The keys of a model and of its partitions, derived from the one key a script is given. They mirror
-- inference_cache.store.keys; a test compares the two. All share the hash tag of KEYS[1].

local function model_root(totals_key)
  return sub(totals_key, 1, -8) -- without ":totals"
end

local function model_keys(totals_key)
  local root = model_root(totals_key)
  return {
    root = root,
    totals = totals_key,
    replicas = root .. ':replicas',
    slots = root .. ':slots',
    stats = root .. ':stats',
    partitions = root .. ':partitions',
    oldest = root .. ':oldest',
    retired = root .. ':retired',
    order = root .. ':order',
    credited = root .. ':credited',
    tails = root .. ':tails',
    rebuild = root .. ':rebuild',
  }
end

local function partition_keys(root, partition)
  local p = root .. ':P:' .. partition
  return {
    blocks = p .. ':blocks',
    segments = p .. ':segments',
    hashes = p .. ':hashes',
    counts = p .. ':counts',
    hits = p .. ':hits',
    held = p .. ':held:',
  }
end

local function slot_key(root, slot)
  return root .. ':slot:' .. slot
end

local function scheme_of(partition)
  return sub(partition, 1, string.find(partition, '/', 1, true) - 1)
end

local function scope_keys(root, scheme)
  local s = root .. ':S:' .. scheme
  return s .. ':serving', s .. ':count'
end

-- Give a key an expiry, or a later one; another server may know a longer one for a key that both write.
local function extend_life(key, ttl_ms)
  if call('PEXPIRE', key, ttl_ms, 'GT') == 0 then call('PEXPIRE', key, ttl_ms, 'NX') end
end

-- Note a segment that should be rebuilt, for a sweep to find if this server dies before it does so.
local function note_rebuild(M, partition, segment)
  call('SADD', M.rebuild, partition .. '\0' .. segment)
  extend_life(M.rebuild, max(call('PTTL', M.totals), 60000))
end

-- Called before the first write. While a Cluster slot moves key by key, asking for a key that is not here is refused, so
-- asking for one that never exists refuses the whole call now instead of half-way, when a key is found missing that
-- has moved or that this very call has emptied.
local function refuse_while_moving(root)
  call('EXISTS', root .. ':absent')
end
