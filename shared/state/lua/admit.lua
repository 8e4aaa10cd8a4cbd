-- ADMIT: make a request live, once.
-- KEYS  request:{rid} (hash)  live:{g_inc} (set)  tenant:{tenant} (set)  beats (hash)
-- ARGV  rid  g_inc  max_live (0 = no quota)  ttl_s  then record fields as name, value, ...
-- Returns admitted | over_quota | ended | taken. A repeat writes the same again.
local rid, g_inc, max_live, ttl_s = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local stored = redis.call('HMGET', KEYS[1], 'g_inc', 'state')
local owner, state = stored[1], stored[2]
if owner and owner ~= g_inc then
  return 'taken'
end
if owner and state ~= 'live' and state ~= 'abandoned' then
  return 'ended'
end
if max_live > 0 then
  if redis.call('SISMEMBER', KEYS[3], rid) == 0 and redis.call('SCARD', KEYS[3]) >= max_live then
    return 'over_quota'
  end
  redis.call('SADD', KEYS[3], rid)
  redis.call('EXPIRE', KEYS[3], ttl_s)
end
redis.call('HSET', KEYS[1], 'state', 'live', unpack(ARGV, 5))
redis.call('EXPIRE', KEYS[1], ttl_s)
redis.call('SADD', KEYS[2], rid)
redis.call('EXPIRE', KEYS[2], ttl_s)
redis.call('HSETNX', KEYS[4], g_inc, 0)
redis.call('EXPIRE', KEYS[4], ttl_s)
return 'admitted'
