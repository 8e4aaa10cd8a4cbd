-- REGISTER: add or refresh one worker's entry.
-- KEYS  workers:{pool} (hash)  workers-expiry:{pool} (zset)  pools (set)
--       workers-drains:{pool} (zset)
-- ARGV  inc  entry  pool  stale after, ms  ttl_s of the keys
-- Returns 1 if the worker is asked to drain, else 0.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + ARGV[4]), ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3])
for index = 1, 3 do
  redis.call('EXPIRE', KEYS[index], ARGV[5])
end
local drains_until = redis.call('ZSCORE', KEYS[4], ARGV[1])
return drains_until and tonumber(drains_until) > now_ms and 1 or 0
