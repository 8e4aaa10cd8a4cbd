-- CONVICT: note requests that no gateway shall take, and read all of them.
-- KEYS  convicted (zset)
-- ARGV  for how many s  most of them  then fingerprints
-- Returns fingerprint, seconds left, ...
local now = tonumber(redis.call('TIME')[1])
for at = 3, #ARGV do
  redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[at])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[2])
local found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for at = 2, #found, 2 do
  found[at] = math.floor(tonumber(found[at]) - now)
end
if #ARGV > 2 and #found > 0 then
  redis.call('EXPIRE', KEYS[1], found[#found])
end
return found
