-- DRAIN: ask a worker to take no new work for a while; it hears of it when it registers again.
-- KEYS  workers-drains:{pool} (zset)
-- ARGV  inc  for how long, ms (0: no longer)  ttl_s of the key
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms))
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + ARGV[2]), ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return 1
