-- FINISH: write outcome and usage, at most once, by the owner only.
-- KEYS  request:{rid} (hash)  live:{g_inc} (set)  tenant:{tenant} (set)  ended:{pool} (stream)
--       backlog-order, backlog-clock of its pool: shared/queue/lua/put_backlog.lua
--       client-key:{name} (hash), where the client named one
-- ARGV  rid  g_inc  ttl_s  entry of the stream  its most entries  its ttl_s  ttl_s of the key
--       class  tenant  what it was served beyond its charge in the backlog, or less
--       then record fields as name, value, ... (state and usage among them)
-- Returns {written 0|1, state, code, num_output_tokens, num_cached_tokens, num_attempts}, or {}
-- if another gateway owns the request. A final record is answered as it stands. One whose client
-- key another request has by now, since its gateway was taken for dead, is billed nothing. One that
-- ends undone, with nothing delivered, leaves its client key to the next. Its tenant owes the rest
-- of its charge while somebody of its class waits.
local SPAN = 2 ^ 50
local rid, g_inc, ttl_s = ARGV[1], ARGV[2], ARGV[3]
local stored = redis.call('HMGET', KEYS[1], 'g_inc', 'state')
local owner, state = stored[1], stored[2]
if owner and owner ~= g_inc then
  return {}
end
local written = 0
if not owner or state == 'live' or state == 'abandoned' then
  redis.call('HSET', KEYS[1], unpack(ARGV, 11))
  redis.call('EXPIRE', KEYS[1], ttl_s)
  local has_key = KEYS[7] and redis.call('HGET', KEYS[7], 'rid')
  if has_key and has_key ~= rid then
    redis.call('HSET', KEYS[1], 'state', 'cancelled', 'code', 'superseded',
      'num_output_tokens', 0, 'num_cached_tokens', 0)
  elseif KEYS[7] then
    local ended = redis.call('HMGET', KEYS[1], 'state', 'num_output_tokens')
    if ended[1] ~= 'done' and tonumber(ended[2]) == 0 then
      redis.call('DEL', KEYS[7])
    else
      redis.call('HSET', KEYS[7], 'rid', rid, unpack(ARGV, 11))
      redis.call('EXPIRE', KEYS[7], ARGV[7])
    end
  end
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], '*', 'e', ARGV[4])
  redis.call('EXPIRE', KEYS[4], ARGV[6])
  redis.call('SREM', KEYS[2], rid)
  redis.call('SREM', KEYS[3], rid)
  local class, from = tonumber(ARGV[8]), string.format('%.0f', ARGV[8] * SPAN)
  local below_next = string.format('(%.0f', (class + 1) * SPAN)
  if ARGV[10] ~= '0' and redis.call('ZCOUNT', KEYS[5], from, below_next) > 0 then
    redis.call('HINCRBY', KEYS[6], 'owed:' .. ARGV[8] .. ':' .. ARGV[9], ARGV[10])
  end
  written = 1
end
local answer = redis.call('HMGET', KEYS[1], 'state', 'code', 'num_output_tokens',
  'num_cached_tokens', 'num_attempts')
table.insert(answer, 1, written)
return answer
