-- PUBLISH: append one numbered change of a worker's prefix cache.
-- KEYS  kv-events:{inc} (stream, ids seq-0)  kv-held:{inc} (set)
-- ARGV  seq  stored  removed (32-byte hashes, joined)  events kept  ttl_s
-- Returns 1 if the change is in, now or by an earlier try; 0 if the numbers do not meet.
local function each_hash(joined, command)
  for at = 1, #joined, 32 do
    redis.call(command, KEYS[2], string.sub(joined, at, at + 31))
  end
end
local seq = tonumber(ARGV[1])
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = newest[1] and tonumber(string.match(newest[1][1], '^%d+')) or 0
if last == seq - 1 then
  redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[4], ARGV[1] .. '-0',
    'stored', ARGV[2], 'removed', ARGV[3])
  each_hash(ARGV[2], 'SADD')
  each_hash(ARGV[3], 'SREM')
elseif last ~= seq then
  return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return 1
