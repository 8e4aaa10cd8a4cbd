-- DROP_ORPHANS: take out what gateways that do not beat left in the backlog.
-- KEYS  backlog-order, backlog-entries of a pool: put_backlog.lua; beats (hash)
-- Returns how many requests that were.
local packed = redis.call('HGETALL', KEYS[2])
local count = 0
for at = 1, #packed, 2 do
  local entry = cmsgpack.unpack(packed[at + 1])
  if redis.call('HEXISTS', KEYS[3], entry[2]) == 0 then
    redis.call('ZREM', KEYS[1], entry[1])
    redis.call('HDEL', KEYS[2], packed[at])
    count = count + 1
  end
end
return count
