-- LIST: prune stale entries, answer the rest.
-- KEYS  workers:{pool} (hash)  workers-expiry:{pool} (zset)  pools (set)
-- ARGV  pool
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local stale = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now_ms))
for _, inc in ipairs(stale) do
  redis.call('HDEL', KEYS[1], inc)
  redis.call('ZREM', KEYS[2], inc)
end
local entries = redis.call('HVALS', KEYS[1])
if #entries == 0 then
  redis.call('SREM', KEYS[3], ARGV[1])
end
return entries
