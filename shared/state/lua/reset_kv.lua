-- RESET: write a worker's whole state under a new number.
-- KEYS  kv-events:{inc} (stream, ids seq-0)  kv-held:{inc} (set)
-- ARGV  seq  held (32-byte hashes, joined)  events kept  ttl_s
-- A repeat finds its own event as the newest and writes the same set again.
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = newest[1] and tonumber(string.match(newest[1][1], '^%d+')) or 0
if last < tonumber(ARGV[1]) then
  redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], ARGV[1] .. '-0', 'reset', '1')
end
redis.call('DEL', KEYS[2])
for at = 1, #ARGV[2], 32 do
  redis.call('SADD', KEYS[2], string.sub(ARGV[2], at, at + 31))
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
