-- REGISTER: add or refresh one worker's entry.
-- KEYS  workers:{pool} (hash)  workers-expiry:{pool} (zset)  pools (set)
-- ARGV  inc  entry  pool  stale after, ms  ttl_s of the keys
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + ARGV[4]), ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3])
for _, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, ARGV[5])
end
return 1
