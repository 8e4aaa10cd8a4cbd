-- REMOVE: withdraw one worker's entry; `list` drops the pool when it was the last.
-- KEYS  workers:{pool} (hash)  workers-expiry:{pool} (zset)
-- ARGV  inc
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
