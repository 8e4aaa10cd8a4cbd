-- READ: requests that came, or ended, after one of them.
-- KEYS  arrived:{pool} or ended:{pool} (stream)
-- ARGV  from where on  most entries
-- Returns {server time, ms, entries}.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
return {now_ms, redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])}
