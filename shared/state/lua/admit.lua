-- ADMIT: make a request live, once.
-- KEYS  request:{rid} (hash)  live:{g_inc} (set)  tenant:{tenant} (set)  beats (hash)
--       arrived:{pool} (stream)  client-key:{name} (hash), where the client named one
-- ARGV  rid  g_inc  max_live (0 = no quota)  ttl_s  hash of the body ('' without client key)
--       entry of the stream  its most entries  its ttl_s
--       then record fields as name, value, ...
-- Returns {admitted | over_quota | ended | taken}, or {key_taken, rid, same body 0|1, state, code,
-- num_output_tokens, num_cached_tokens, num_attempts} of the request that has the client's key: one
-- with another body, or that is live or ended. A repeat writes the same again.
local rid, g_inc, max_live, ttl_s, body = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local stored = redis.call('HMGET', KEYS[1], 'g_inc', 'state')
local owner, state = stored[1], stored[2]
if owner and owner ~= g_inc then
  return {'taken'}
end
if owner and state ~= 'live' and state ~= 'abandoned' then
  return {'ended'}
end
if KEYS[6] then
  local used = redis.call('HMGET', KEYS[6], 'rid', 'body', 'state', 'code', 'num_output_tokens',
    'num_cached_tokens', 'num_attempts')
  if used[1] and used[1] ~= rid and (used[2] ~= body or used[3] ~= 'abandoned') then
    return {'key_taken', used[1], used[2] == body and 1 or 0, used[3], used[4] or '',
      used[5] or 0, used[6] or 0, used[7] or 0}
  end
end
if max_live > 0 then
  if redis.call('SISMEMBER', KEYS[3], rid) == 0 and redis.call('SCARD', KEYS[3]) >= max_live then
    return {'over_quota'}
  end
  redis.call('SADD', KEYS[3], rid)
  redis.call('EXPIRE', KEYS[3], ttl_s)
end
if not owner then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[7], '*', 'e', ARGV[6])
  redis.call('EXPIRE', KEYS[5], ARGV[8])
end
redis.call('HSET', KEYS[1], 'state', 'live', unpack(ARGV, 9))
redis.call('EXPIRE', KEYS[1], ttl_s)
redis.call('SADD', KEYS[2], rid)
redis.call('EXPIRE', KEYS[2], ttl_s)
redis.call('HSETNX', KEYS[4], g_inc, 0)
redis.call('EXPIRE', KEYS[4], ttl_s)
if KEYS[6] then
  redis.call('DEL', KEYS[6])
  redis.call('HSET', KEYS[6], 'rid', rid, 'body', body, 'state', 'live')
  redis.call('EXPIRE', KEYS[6], ttl_s)
end
return {'admitted'}
