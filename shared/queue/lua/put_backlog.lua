-- PUT: queue one request of a pool, or say why not.
-- KEYS  backlog-order:{pool} (zset: "arrival:tokens:rid" -> class * SPAN + start tag)
--       backlog-entries:{pool} (hash: rid -> {member, g_inc, tenant, class, tokens, heads, charge})
--       backlog-clock:{pool} (hash: v<class>, arrivals, passes, passes_beyond,
--       owed:<class>:<tenant>)
--       backlog-finish:{pool} (zset: "class:tenant" -> class * SPAN + finish tag)
--       beats (hash: g_inc -> beats; of gateways only)
-- ARGV  rid  g_inc  tenant  class  tokens  heads  max length  max tokens ahead (-1 = any)
--       ttl_s  what its tenant is charged, without what it owes
--       start tag that it was charged for before (-1 = was not)
-- Returns {queued | full | too_late, requests ahead, tokens ahead, start tag}. It is full for a
-- request when as many would go before it; it then first loses the requests of gateways that do
-- not beat: nobody would come for them.
-- Start-time fair queuing; shared/queue/backlog.py has the formula and its source.
local SPAN = 2 ^ 50
local order, entries, clock, finish, beats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local rid, class, tokens = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
local paid_start, base = tonumber(ARGV[11]), class * SPAN

local function exact(number)
  return string.format('%.0f', number)
end

local function answer(status, members, start)
  local sum = 0
  for _, member in ipairs(members) do
    sum = sum + tonumber(string.match(member, '^%d+:(%d+):'))
  end
  return { status, #members, sum, start }
end

local known = redis.call('HGET', entries, rid)
if known then
  local member = cmsgpack.unpack(known)[1]
  local rank = redis.call('ZRANK', order, member)
  local ahead = rank > 0 and redis.call('ZRANGE', order, 0, rank - 1) or {}
  return answer('queued', ahead, tonumber(redis.call('ZSCORE', order, member)) % SPAN)
end
local below_next = '(' .. exact(base + SPAN)
local flow = class .. ':' .. ARGV[3]

local function start_tag()
  if redis.call('ZCOUNT', order, exact(base), below_next) == 0 then
    redis.call('ZREMRANGEBYSCORE', finish, exact(base), below_next)
    for _, name in ipairs(redis.call('HKEYS', clock)) do
      if string.match(name, '^owed:' .. class .. ':') then
        redis.call('HDEL', clock, name)
      end
    end
  end
  local v = tonumber(redis.call('HGET', clock, 'v' .. class) or 0)
  local start = math.max(v, tonumber(redis.call('ZSCORE', finish, flow) or base) - base)
  return paid_start >= 0 and math.min(paid_start, start) or start
end

local function is_full(start)
  return redis.call('ZCOUNT', order, '-inf', exact(base + start)) >= tonumber(ARGV[7])
end

local start = start_tag()
if is_full(start) then
  local packed = redis.call('HGETALL', entries)
  for at = 1, #packed, 2 do
    local entry = cmsgpack.unpack(packed[at + 1])
    if redis.call('HEXISTS', beats, entry[2]) == 0 then
      redis.call('ZREM', order, entry[1])
      redis.call('HDEL', entries, packed[at])
    end
  end
  start = start_tag()
end
local ahead = redis.call('ZRANGEBYSCORE', order, '-inf', exact(base + start))
local placed = answer('queued', ahead, start)
if is_full(start) then
  placed[1] = 'full'
  return placed
end
local limit = tonumber(ARGV[8])
if limit >= 0 and placed[3] > limit then
  placed[1] = 'too_late'
  return placed
end
local arrival = redis.call('HINCRBY', clock, 'arrivals', 1)
local member = string.format('%015d:%d:%s', arrival, tokens, rid)
redis.call('ZADD', order, exact(base + start), member)
local due = tonumber(ARGV[10])
if paid_start < 0 then
  local owed = 'owed:' .. flow
  due = due + tonumber(redis.call('HGET', clock, owed) or 0)
  if due < 0 then
    redis.call('HSET', clock, owed, exact(due))
  else
    redis.call('HDEL', clock, owed)
  end
end
local finished = tonumber(redis.call('ZSCORE', finish, flow) or 0)
redis.call('ZADD', finish, exact(math.max(finished, base + start + math.max(0, due))), flow)
redis.call('HSET', entries, rid,
  cmsgpack.pack({ member, ARGV[2], ARGV[3], class, tokens, ARGV[6], tonumber(ARGV[10]) }))
for at = 1, 4 do
  redis.call('EXPIRE', KEYS[at], ARGV[9])
end
return placed
