-- REAP: a live request of a gateway seen silent at a beat becomes abandoned.
-- KEYS  request:{rid} (hash)  live:{g_inc} (set)  beats (hash)
-- ARGV  rid  g_inc  beat  ttl_s  tenant key prefix  client key prefix
-- Returns reaped | ended | gone | alive. Usage stays at the last progress mark. Another request may
-- have its client key from now on.
-- The tenant's set and the client's key are named by the record itself, so their keys are made here.
local rid, g_inc, beat, ttl_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HGET', KEYS[3], g_inc) ~= beat then
  return 'alive'
end
local stored = redis.call('HMGET', KEYS[1], 'g_inc', 'state', 'tenant', 'client_key')
redis.call('SREM', KEYS[2], rid)
if stored[1] ~= g_inc then
  return 'gone'
end
if stored[2] == 'live' then
  redis.call('HSET', KEYS[1], 'state', 'abandoned', 'code', 'gateway_lost')
  redis.call('EXPIRE', KEYS[1], ttl_s)
  redis.call('SREM', ARGV[5] .. stored[3], rid)
  local client_key = ARGV[6] .. (stored[4] or '')
  if stored[4] and redis.call('HGET', client_key, 'rid') == rid then
    redis.call('HSET', client_key, 'state', 'abandoned')
    redis.call('EXPIRE', client_key, ttl_s)
  end
elseif stored[2] ~= 'abandoned' then
  return 'ended'
end
return 'reaped'
