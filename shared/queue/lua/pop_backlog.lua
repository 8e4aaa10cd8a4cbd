-- POP: take the request among the first ones of which the worker holds the longest prefix.
-- KEYS  backlog-order, backlog-entries, backlog-clock, backlog-finish of a pool: put_backlog.lua
-- ARGV  held heads (32-byte hashes, joined)  window  max passes
--       tokens of which a long prompt has more
--       last class whose long prompts the worker has a place for (-1 = none)
--       whether it has room for short ones  most long prompts that are passed
-- Returns {rid, entry} or nil: it is empty, or only long prompts wait and what may not pass them.
-- A member without an entry, which Redis has evicted, is dropped.
-- shared/queue/turn.py says which may pass.
local SPAN = 2 ^ 50
local order, entries, clock, finish = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local window, max_passes = tonumber(ARGV[2]), tonumber(ARGV[3])
local long_tokens, last_class = tonumber(ARGV[4]), tonumber(ARGV[5])
local takes_short, most_passed = ARGV[6] == '1', tonumber(ARGV[7])

local head = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')
if #head == 0 then
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

local head_score = tonumber(head[2])
local class = math.floor(head_score / SPAN)
local passed = {} -- tenants and finish tags of long prompts without a place

local function may_go(score, tenant)
  for _, other in ipairs(passed) do
    if tenant ~= other[1] and score > other[2] then
      return false
    end
  end
  return true
end

local going, most, lost = {}, window, {}
local offset, ended = 0, false
local counter, passes

local function look(member, score)
  if #going == most or score >= (class + 1) * SPAN then
    return false
  end
  local tokens, rid = string.match(member, '^%d+:(%d+):(.*)$')
  local packed = redis.call('HGET', entries, rid)
  if not packed then
    lost[#lost + 1] = member
    return true
  end
  local entry = cmsgpack.unpack(packed)
  local is_long = tonumber(tokens) > long_tokens
  if is_long and class > last_class then
    if #passed == most_passed then
      return false
    end
    -- an earlier release did not write the charge
    passed[#passed + 1] = { entry[3], score + (entry[7] or entry[5]) }
    return true
  end
  if not (is_long or takes_short) or not may_go(score, entry[3]) then
    return false
  end
  if #going == 0 then
    counter = #passed == 0 and 'passes' or 'passes_beyond'
    passes = tonumber(redis.call('HGET', clock, counter) or 0)
    if next(held) == nil or passes >= max_passes then
      most = 1
    end
  end
  going[#going + 1] = { member, rid, packed, heads_held(entry[6]) }
  return true
end

while not ended do
  local some = redis.call('ZRANGE', order, offset, offset + window - 1, 'WITHSCORES')
  ended = #some < 2 * window
  for at = 1, #some, 2 do
    if not look(some[at], tonumber(some[at + 1])) then
      ended = true
      break
    end
  end
  offset = offset + window
end
for _, member in ipairs(lost) do
  redis.call('ZREM', order, member)
end
if #going == 0 then
  return nil
end
local best = 1
for at, each in ipairs(going) do
  if each[4] > going[best][4] then
    best = at
  end
end
local member, rid, packed = unpack(going[best])

redis.call('ZREM', order, member)
redis.call('HDEL', entries, rid)
-- What was put again at its former tag may be behind the virtual time, which never goes back.
local v = tonumber(redis.call('HGET', clock, 'v' .. class) or 0)
redis.call('HSET', clock, counter, best == 1 and 0 or passes + 1,
  'v' .. class, string.format('%.0f', math.max(v, head_score - class * SPAN)))
redis.call('ZREMRANGEBYSCORE', finish, string.format('%.0f', class * SPAN),
  string.format('%.0f', head_score))
return { rid, packed }
