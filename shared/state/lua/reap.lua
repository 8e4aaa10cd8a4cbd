-- REAP: a live request of a gateway seen silent at a beat becomes abandoned.
-- KEYS  request:{rid} (hash)  live:{g_inc} (set)  beats (hash)
-- ARGV  rid  g_inc  beat  ttl_s  tenant key prefix
-- Returns reaped | ended | gone | alive. Usage stays at the last progress mark.
-- The tenant's set is named by the record itself, so its key is made here.
local rid, g_inc, beat, ttl_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HGET', KEYS[3], g_inc) ~= beat then
  return 'alive'
end
local stored = redis.call('HMGET', KEYS[1], 'g_inc', 'state', 'tenant')
redis.call('SREM', KEYS[2], rid)
if stored[1] ~= g_inc then
  return 'gone'
end
if stored[2] == 'live' then
  redis.call('HSET', KEYS[1], 'state', 'abandoned', 'code', 'gateway_lost')
  redis.call('EXPIRE', KEYS[1], ttl_s)
  redis.call('SREM', ARGV[5] .. stored[3], rid)
elseif stored[2] ~= 'abandoned' then
  return 'ended'
end
return 'reaped'
