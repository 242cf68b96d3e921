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
  }
end

local function partition_keys(root, partition)
  local p = root .. ':P:' .. partition
  return {
    blocks = p .. ':blocks',
    segments = p .. ':segments',
    hashes = p .. ':hashes',
    counts = p .. ':counts',
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

-- Touch every key before the first write: while a Cluster slot moves key by key, one missing
-- key refuses the whole call here instead of half-way through it.
local function touch(keys)
  for i = 1, #keys, 4000 do
    call('EXISTS', unpack(keys, i, min(i + 3999, #keys)))
  end
end

local function with_partition(keys, P, slot)
  local n = #keys
  keys[n + 1], keys[n + 2], keys[n + 3], keys[n + 4] = P.blocks, P.segments, P.hashes, P.counts
  keys[n + 5] = P.held .. slot
end

-- Every key that a writing call about one slot may touch, but for its partitions'.
local function writer_keys(M, slot)
  return { M.totals, M.replicas, M.slots, M.stats, M.partitions, M.oldest, M.retired, slot_key(M.root, slot) }
end
