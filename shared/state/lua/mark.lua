-- MARK: note how many tokens each live request of one gateway has delivered.
-- KEYS  request:{rid} (hash), one per request
-- ARGV  g_inc  then one count per key
-- A repeat or a late call cannot lower a mark nor touch a record that ended.
for i = 1, #KEYS do
  local stored = redis.call('HMGET', KEYS[i], 'g_inc', 'state', 'num_output_tokens')
  local count = ARGV[i + 1]
  if stored[1] == ARGV[1] and stored[2] == 'live'
      and tonumber(count) > tonumber(stored[3] or 0) then
    redis.call('HSET', KEYS[i], 'num_output_tokens', count)
  end
end
return #KEYS
