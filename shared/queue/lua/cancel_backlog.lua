-- CANCEL: take one request out of the backlog.
-- KEYS  backlog-order, backlog-entries of a pool: put_backlog.lua
-- ARGV  rid
-- Returns 1 if it waited there, else 0.
local entry = redis.call('HGET', KEYS[2], ARGV[1])
if not entry then
  return 0
end
redis.call('ZREM', KEYS[1], cmsgpack.unpack(entry)[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
