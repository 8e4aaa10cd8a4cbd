-- POP: take the request among the first ones of which the worker holds the longest prefix.
-- KEYS  backlog-order, backlog-entries, backlog-clock, backlog-finish of a pool: put_backlog.lua
-- ARGV  held heads (32-byte hashes, joined)  window  max passes
-- Returns {rid, entry} or nil.
local SPAN = 2 ^ 50
local order, entries, clock, finish = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local first = redis.call('ZRANGE', order, 0, tonumber(ARGV[2]) - 1, 'WITHSCORES')
if #first == 0 then
  return nil
end
local held = {}
for at = 1, #ARGV[1], 32 do
  held[string.sub(ARGV[1], at, at + 31)] = true
end

local function heads_held(heads)
  local count = 0
  for at = 1, #heads, 32 do
    if not held[string.sub(heads, at, at + 31)] then
      break
    end
    count = count + 1
  end
  return count
end

local head_score = tonumber(first[2])
local class = math.floor(head_score / SPAN)
local passes = tonumber(redis.call('HGET', clock, 'passes') or 0)
local best, best_rid, best_entry, best_count
for i = 1, #first, 2 do
  local rid = string.match(first[i], '^%d+:%d+:(.*)$')
  if best and (next(held) == nil or passes >= tonumber(ARGV[3])) then
    break
  end
  if tonumber(first[i + 1]) < (class + 1) * SPAN then
    local entry = redis.call('HGET', entries, rid)
    local count = heads_held(cmsgpack.unpack(entry)[6])
    if not best or count > best_count then
      best, best_rid, best_entry, best_count = i, rid, entry, count
    end
  end
end

redis.call('ZREM', order, first[best])
redis.call('HDEL', entries, best_rid)
-- What was put again at its former tag may be behind the virtual time, which never goes back.
local v = tonumber(redis.call('HGET', clock, 'v' .. class) or 0)
redis.call('HSET', clock, 'passes', best == 1 and 0 or passes + 1,
  'v' .. class, string.format('%.0f', math.max(v, head_score - class * SPAN)))
redis.call('ZREMRANGEBYSCORE', finish, string.format('%.0f', class * SPAN),
  string.format('%.0f', head_score))
return { best_rid, best_entry }
