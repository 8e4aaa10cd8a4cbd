-- BEAT: count one beat of a gateway and read everybody's count.
-- KEYS  beats (hash)
-- ARGV  g_inc  ttl_s
-- Returns the hash. A repeat counts one more, which is as good a sign of life.
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('EXPIRE', KEYS[1], ARGV[2])
return redis.call('HGETALL', KEYS[1])
