-- FORGET: drop a gateway's beats once it owns nothing.
-- KEYS  beats (hash)  live:{g_inc} (set)
-- ARGV  g_inc  beat ('' = whatever it is)
-- Returns 1 if it is forgotten (or was), 0 if it still owns requests or beat since.
local beat = redis.call('HGET', KEYS[1], ARGV[1])
if redis.call('SCARD', KEYS[2]) > 0 then
  return 0
end
if beat and ARGV[2] ~= '' and beat ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
