-- SNAPSHOT: what a worker holds and the number of the event that made it so.
-- KEYS  kv-events:{inc} (stream, ids seq-0)  kv-held:{inc} (set)
-- Returns {seq, hashes}.
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = newest[1] and tonumber(string.match(newest[1][1], '^%d+')) or 0
return { last, table.concat(redis.call('SMEMBERS', KEYS[2])) }
