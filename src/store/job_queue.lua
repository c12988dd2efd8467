-- store/job_queue.lua - all that changes a queue, as one script: Redis runs it whole or not at all,
-- so that no death between two commands leaves a job half taken or half ended. job_queue.h says
-- what a queue promises, docs/fleet.md has the table of keys.
--
--   KEYS[1]  margay:{q:NAME}:meta, from which all other names are made: one hash tag, one slot
--   ARGV[1]  what to do: a function of `op` below; its arguments follow
--
-- A waiting job stands in a lane (sorted set by its number, one for each priority and key); each
-- priority has a sorted set of its lanes, by what decides the turn: how many jobs of the key run,
-- then the number of the oldest. A running job's entry of the stream `jobs` is pending in the
-- consumer group `workers`: that is its lease, and the idle time there is how old the last sign of
-- life is. Each start has a number of its own (`attempt`); what an older one sends is refused.
-- An event's ID in a job's stream is the place in the answer's bytes where it ends: E-0, and E-2
-- for the last; 0-1 is the head.

local base = string.sub(KEYS[1], 1, -5)
local META, JOBS, DUE = KEYS[1], base .. 'jobs', base .. 'due'
local RUN, WAIT, WORKERS, DEAD = base .. 'run', base .. 'wait', base .. 'workers', base .. 'dead'
local HEAVY, USES = base .. 'heavy', base .. 'uses' -- a key's waiting bytes; open jobs of a picture
local PRIORITY = {'high', 'normal', 'low'}
local GROUP = 'workers'
local TURN = 1099511627776 -- 2^40: a job that runs outweighs every number of one that waits
local QUIET = 604800       -- seconds without a submit or a start until what is shared expires
local AFTER = 60           -- seconds that a picture stays after the last open job that named it
local MOST_BODIES = 16777216 -- bytes of bodies in one reply to a take
local MOST_VICTIMS = 64
local call = redis.call
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function job_key(id) return base .. 'job:' .. id end
local function event_key(id) return base .. 'ev:' .. id end
local function lane_key(priority, tenant) return base .. 'lane:' .. priority .. ':' .. tenant end
local function number(text) return tonumber(text) or 0 end
local function count(field, n) return call('HINCRBY', META, field, n) end
local function get(id, ...)
    local v = call('HMGET', job_key(id), ...)
    return v
end

local function set_up()
    if call('EXISTS', JOBS) == 0 then call('XGROUP', 'CREATE', JOBS, GROUP, '$', 'MKSTREAM') end
end

local function keep()
    for _, key in ipairs({META, JOBS, DUE, RUN, WAIT, WORKERS, HEAVY, USES}) do call('EXPIRE', key, QUIET) end
end

-- The places of a key's lanes, after what decides them has changed.
local function place(tenant)
    local running = number(call('HGET', RUN, tenant))
    for _, priority in ipairs(PRIORITY) do
        local lane = lane_key(priority, tenant)
        local head = call('ZRANGE', lane, 0, 0, 'WITHSCORES')
        if head[1] then
            call('ZADD', base .. 'ready:' .. priority, running * TURN + number(head[2]), tenant)
            call('EXPIRE', base .. 'ready:' .. priority, QUIET)
        else
            call('ZREM', base .. 'ready:' .. priority, tenant)
        end
    end
end

-- Into its lane, at the place of its number; the stream's new entry wakes workers.
local function enqueue(id, tenant, priority, seq, deadline)
    set_up()
    local lane = lane_key(priority, tenant)
    local entry = call('XADD', JOBS, '*', 'j', id)
    call('ZADD', lane, seq, id)
    call('EXPIRE', lane, QUIET)
    call('ZADD', DUE, deadline, id)
    call('HSET', job_key(id), 'state', 'waiting', 'entry', entry)
    call('HSET', META, 'last', entry)
    count('waiting', 1)
    call('ZINCRBY', WAIT, 1, tenant)
    call('ZINCRBY', HEAVY, number(get(id, 'bytes')[1]), tenant)
    place(tenant)
end

local function leave_lane(id, tenant, priority)
    if call('ZREM', lane_key(priority, tenant), id) == 0 then return end
    call('ZREM', DUE, id)
    if count('waiting', -1) < 0 then call('HSET', META, 'waiting', 0) end
    call('ZINCRBY', HEAVY, 0 - number(get(id, 'bytes')[1]), tenant)
    if number(call('ZINCRBY', WAIT, -1, tenant)) <= 0 then
        call('ZREM', WAIT, tenant)
        call('ZREM', HEAVY, tenant)
    end
    place(tenant)
end

local function leave_running(tenant)
    if call('HINCRBY', RUN, tenant, -1) <= 0 then call('HDEL', RUN, tenant) end
    place(tenant)
end

local function drop_entry(entry)
    if not entry then return end
    call('XACK', JOBS, GROUP, entry)
    call('XDEL', JOBS, entry)
end

-- A job's pictures stay for so long; returns the digests of those that aren't there.
local function hold_blobs(tenant, blobs, seconds)
    local missing = {}
    for digest in string.gmatch(blobs or '', '=(%x+)') do
        if call('EXPIRE', base .. 'blob:' .. tenant .. ':' .. digest, seconds) == 0 then missing[#missing + 1] = digest end
    end
    return missing
end

-- How many open jobs name a picture; the last one leaves it for a minute, for the next question.
local function use_blobs(tenant, blobs, by)
    for digest in string.gmatch(blobs or '', '=(%x+)') do
        local name = tenant .. ':' .. digest
        if call('HINCRBY', USES, name, by) <= 0 then
            call('HDEL', USES, name)
            call('EXPIRE', base .. 'blob:' .. name, AFTER)
        end
    end
end

-- Gateways that watch a job have a stream each, which is there while they live.
local function tell(id, gateways)
    for name in string.gmatch(gateways or '', '%S+') do
        local inbox = base .. 'gw:' .. name
        if call('EXISTS', inbox) == 1 then call('XADD', inbox, 'MAXLEN', '~', 4096, '*', 'j', id) end
    end
end

-- Exactly once for each job: nothing leaves these states.
local function finish(id, state, code)
    local v = get(id, 'state', 'tenant', 'prio', 'entry', 'off', 'bytes', 'keep', 'gw', 'blobs')
    if v[1] ~= 'waiting' and v[1] ~= 'running' then return false end
    if v[1] == 'waiting' then leave_lane(id, v[2], v[3]) else leave_running(v[2]) end
    drop_entry(v[4])
    use_blobs(v[2], v[9], -1)
    count('bytes', 0 - number(v[6])) -- (-0 is no number to Redis)
    count('ended:' .. state, 1)
    call('HSET', job_key(id), 'state', state, 'code', code, 'ended', now)
    call('HDEL', job_key(id), 'body', 'entry')
    call('XADD', event_key(id), v[5] .. '-2', 'e', state, 'c', code)
    call('EXPIRE', job_key(id), v[7])
    call('EXPIRE', event_key(id), v[7])
    tell(id, v[8])
    return true
end

-- From running back to its lane; its attempt ends here.
local function put_back(id)
    local v = get(id, 'tenant', 'prio', 'seq', 'entry', 'wait', 'live', 'blobs')
    local deadline, stays = now + number(v[5]), math.ceil(number(v[5]) / 1000) + number(v[6])
    drop_entry(v[4])
    leave_running(v[1])
    call('EXPIRE', job_key(id), stays)
    hold_blobs(v[1], v[7], stays)
    enqueue(id, v[1], v[2], v[3], deadline)
end

local function bury(id, code)
    local v = get(id, 'tenant', 'path', 'tries', 'worker', 'created')
    call('XADD', DEAD, 'MAXLEN', '~', 1000, '*', 'j', id, 'tenant', v[1], 'path', v[2], 'tries', v[3],
         'worker', v[4] or '', 'created', v[5], 'code', code)
    call('EXPIRE', DEAD, QUIET)
    finish(id, 'dead', code)
end

-- Is this attempt the one that runs? 'ok', 'cancel': somebody wants it ended, 'lost': it isn't.
local function owner(id, attempt)
    local v = get(id, 'state', 'attempt', 'cancel')
    if v[1] ~= 'running' or v[2] ~= attempt then return 'lost' end
    return v[3] and 'cancel' or 'ok'
end

local function wait_seconds(waiting)
    local running = math.max(1, number(call('HGET', META, 'slots')))
    local each = number(call('HGET', META, 'each'))
    return math.max(1, math.min(300, math.ceil(waiting * each / running / 1000)))
end

-- Somebody is there. Where nobody was heard for a while Redis itself was away, or all others were:
-- what looks late then is not, and leases get their time anew.
local function sign()
    local v = call('HMGET', META, 'seen', 'lease')
    local lease = v[2] and number(v[2]) or 10000
    call('HSET', META, 'seen', now)
    if v[1] and now - number(v[1]) > math.max(lease / 2, 2000) then
        call('HSET', META, 'hold', now + lease)
    end
end

local function newest(tenant, most)
    local ids = {}
    for i = #PRIORITY, 1, -1 do
        for _, id in ipairs(call('ZREVRANGE', lane_key(PRIORITY[i], tenant), 0, most - 1)) do ids[#ids + 1] = id end
    end
    return ids
end

-- Too many wait: the newest job of the key that has most makes room for a key that has less. nil: nobody has.
local function longest(tenant)
    local most = call('ZREVRANGE', WAIT, 0, 0, 'WITHSCORES')
    local own = number(call('ZSCORE', WAIT, tenant))
    if not most[1] or most[1] == tenant or number(most[2]) <= own + 1 then return nil end
    local id = newest(most[1], 1)[1]
    return id and {id}
end

-- Too many bytes, by `need`: the newest jobs of keys whose waiting ones have more bytes than this key's will have,
-- also afterwards. nil: there aren't as many.
local function heaviest(tenant, bytes, need)
    local own, held, left, victims = number(call('ZSCORE', HEAVY, tenant)) + bytes, {}, {}, {}
    local flat = call('ZREVRANGE', HEAVY, 0, 15, 'WITHSCORES')
    for i = 1, #flat, 2 do
        if flat[i] ~= tenant then held[flat[i]] = number(flat[i + 1]) end
    end
    while need > 0 do
        local most
        for name, n in pairs(held) do
            if n > own and (not most or n > held[most] or (n == held[most] and name < most)) then most = name end
        end
        if not most or #victims == MOST_VICTIMS then return nil end
        left[most] = left[most] or newest(most, MOST_VICTIMS)
        local id = table.remove(left[most], 1)
        local n = id and number(get(id, 'bytes')[1])
        if not id then
            held[most] = 0
        elseif held[most] - n >= own then
            held[most], need, victims[#victims + 1] = held[most] - n, need - n, id
        end
    end
    return victims
end

local op = {}

-- id tenant priority stream gateway wait_ms keep_s live_s max_waiting max_bytes bytes path body
-- n_blob (name, digest)... -> {word, ...}: 'ok' number ahead; 'full' seconds; 'missing' digest...;
-- 'known' state, when it was handed in before: a submit may be repeated; 'taken', by another key.
function op.submit(id, tenant, priority, stream, gateway, wait, keep_s, live, max_waiting, max_bytes,
                   bytes, path, body, n_blob, ...)
    local blob, list = {...}, {}
    local stays = math.ceil(number(wait) / 1000) + number(live)
    local there = get(id, 'state', 'tenant', 'gw')
    if there[1] then
        if there[2] ~= tenant then return {'taken'} end
        call('DEL', base .. 'none') -- (see the end)
        op.state(id, tenant, gateway)
        tell(id, gateway)
        return {'known', there[1]}
    end
    count('submitted', 0) -- refused here when Redis is full
    for i = 1, number(n_blob) do list[i] = blob[2 * i - 1] .. '=' .. blob[2 * i] end
    local blobs = table.concat(list, ' ')
    local waiting, held = number(call('HGET', META, 'waiting')), number(call('HGET', META, 'bytes'))
    local victims = {}
    if held > 0 and held + number(bytes) > number(max_bytes) then
        victims = heaviest(tenant, number(bytes), held + number(bytes) - number(max_bytes))
    end
    if victims and waiting - #victims >= number(max_waiting) then victims = victims[1] and victims or longest(tenant) end
    if not victims or waiting - #victims >= number(max_waiting) then
        count('refused', 1)
        return {'full', wait_seconds(waiting)}
    end
    local missing = hold_blobs(tenant, blobs, stays)
    if missing[1] then return {'missing', unpack(missing)} end
    for _, victim in ipairs(victims) do
        count('refused', 1)
        finish(victim, 'failed', 'queue_full')
    end
    local seq, deadline = count('seq', 1), now + number(wait)
    call('HSET', job_key(id), 'tenant', tenant, 'prio', priority, 'stream', stream, 'gw', gateway, 'seq', seq,
         'created', now, 'wait', wait, 'keep', keep_s, 'live', live, 'bytes', bytes, 'path', path, 'body',
         body, 'blobs', blobs, 'off', 0, 'attempt', 0, 'tries', 0)
    call('EXPIRE', job_key(id), stays)
    use_blobs(tenant, blobs, 1)
    count('bytes', number(bytes))
    count('submitted', 1)
    enqueue(id, tenant, priority, seq, deadline)
    keep()
    return {'ok', waiting}
end

-- A picture of a job about to be submitted; there already is fine.
function op.blob(tenant, digest, live, data)
    call('SET', base .. 'blob:' .. tenant .. ':' .. digest, data, 'EX', live)
    return 'ok'
end

-- The first lane in turn, from the highest priority down; each eighth time from the lowest up, so
-- that nobody waits for ever.
local function next_tenant()
    local from, to, step = 1, #PRIORITY, 1
    if count('turn', 1) % 8 == 0 then from, to, step = #PRIORITY, 1, -1 end
    for i = from, to, step do
        local tenant = call('ZRANGE', base .. 'ready:' .. PRIORITY[i], 0, 0)[1]
        if tenant then return tenant, PRIORITY[i] end
    end
end

-- Of a key's next jobs the first that asks about a picture this worker has, unless the oldest has
-- waited long enough.
local function choose(lane, look, aged, have)
    local ids = call('ZRANGE', lane, 0, look - 1)
    if #ids < 2 or not next(have) then return ids[1] end
    if now - number(get(ids[1], 'created')[1]) >= aged then return ids[1] end
    for _, id in ipairs(ids) do
        for digest in string.gmatch(get(id, 'blobs')[1] or '', '=(%x+)') do
            if have[digest] then return id end
        end
    end
    return ids[1]
end

-- worker n look aged_ms digest... -> {last entry, {id, attempt, tenant, priority, stream, path, body, blobs,
-- created, off, waited_ms}...}; n 0 takes none.
function op.take(worker, n, look, aged, ...)
    local have, out, bodies = {}, {''}, 0
    for _, digest in ipairs({...}) do have[digest] = true end
    set_up()
    sign()
    while #out - 1 < number(n) and bodies < MOST_BODIES do
        local tenant, priority = next_tenant()
        if not tenant then break end
        local lane = lane_key(priority, tenant)
        local id = choose(lane, number(look), number(aged), have)
        leave_lane(id, tenant, priority)
        local v = get(id, 'stream', 'path', 'body', 'blobs', 'created', 'off', 'entry', 'live', 'state')
        if v[9] == 'waiting' then
            local attempt = call('HINCRBY', job_key(id), 'attempt', 1)
            call('HINCRBY', job_key(id), 'tries', 1)
            call('HSET', job_key(id), 'state', 'running', 'worker', worker, 'started', now)
            call('EXPIRE', job_key(id), v[8])
            call('XCLAIM', JOBS, GROUP, worker, 0, v[7], 'FORCE', 'RETRYCOUNT', attempt, 'JUSTID')
            call('HINCRBY', RUN, tenant, 1)
            place(tenant)
            hold_blobs(tenant, v[4], v[8])
            bodies = bodies + #v[3]
            out[#out + 1] = {id, tostring(attempt), tenant, priority, v[1], v[2], v[3], v[4], v[5], v[6],
                             tostring(now - number(v[5]))}
        end
    end
    if #out > 1 then keep() end
    out[1] = call('HGET', META, 'last') or '0-0'
    return out
end

-- id attempt head from data state code -> 'ok', 'cancel', 'lost', 'gap'. head '' after the first; state '' while
-- more comes. Nothing is written for those that are lost, nor a second time: a call that was given up
-- while Redis stood still may have been done all the same, so data says where it belongs. 'gap': Redis
-- has lost what came before (appendfsync everysec, and it was killed).
function op.emit(id, attempt, head, from, data, state, code)
    local how = owner(id, attempt)
    if how == 'lost' then return how end
    local v = get(id, 'off', 'gw', 'live', 'started')
    local off = number(v[1])
    if off < number(from) then return 'gap' end
    if head ~= '' and call('EXISTS', event_key(id)) == 0 then
        call('XADD', event_key(id), '0-1', 'h', head)
    end
    data = string.sub(data, off - number(from) + 1)
    if data ~= '' then
        off = off + #data
        call('XADD', event_key(id), off .. '-0', 'd', data, 'a', attempt)
        call('HSET', job_key(id), 'off', off)
    end
    if state ~= '' then
        local took, each = now - number(v[4]), number(call('HGET', META, 'each'))
        if state == 'done' then call('HSET', META, 'each', math.floor(each == 0 and took or each * 0.9 + took * 0.1)) end
        finish(id, state, code)
        return how
    end
    call('EXPIRE', event_key(id), v[3])
    tell(id, v[2])
    return how
end

-- id attempt counted max_tries -> back into its lane; uncounted: the worker is being stopped, which says
-- nothing about the job. A counted one that was begun as often as is allowed is a dead letter.
function op.release(id, attempt, counted, max_tries)
    local how = owner(id, attempt)
    if how == 'lost' then return how end
    if how == 'cancel' then
        finish(id, 'cancelled', 'cancelled')
        return how
    end
    if counted == '0' then
        call('HINCRBY', job_key(id), 'tries', -1)
    elseif max_tries and number(get(id, 'tries')[1]) >= number(max_tries) then
        bury(id, 'worker_lost')
        return 'ok'
    end
    count('released', 1)
    put_back(id)
    return 'ok'
end

-- worker id... -> how many jobs the worker holds without knowing of them: the reply to their take was
-- lost. They are put back, uncounted.
function op.mine(worker, ...)
    local known, n = {}, 0
    for _, id in ipairs({...}) do known[id] = true end
    set_up()
    for _, p in ipairs(call('XPENDING', JOBS, GROUP, '-', '+', 64, worker)) do
        local entry = call('XRANGE', JOBS, p[1], p[1])[1]
        local id = entry and entry[2][2]
        if id and not known[id] and get(id, 'state')[1] == 'running' then
            call('HINCRBY', job_key(id), 'tries', -1)
            count('released', 1)
            put_back(id)
            n = n + 1
        end
    end
    return n
end

-- worker live_ms slots about (id attempt)... -> {id, attempt, word...}: those that are not 'ok'.
function op.beat(worker, live, slots, about, ...)
    local arg, out = {...}, {}
    set_up()
    sign()
    call('ZADD', WORKERS, now, worker)
    if about ~= '' then
        call('HSET', base .. 'worker:' .. worker, 'slots', slots, 'about', about)
    end
    call('PEXPIRE', base .. 'worker:' .. worker, live)
    for i = 1, #arg, 2 do
        local how = owner(arg[i], arg[i + 1])
        if how ~= 'lost' then
            local v = get(arg[i], 'entry', 'live')
            call('XCLAIM', JOBS, GROUP, worker, 0, v[1], 'JUSTID')
            call('EXPIRE', job_key(arg[i]), v[2])
            call('EXPIRE', event_key(arg[i]), v[2])
        end
        if how ~= 'ok' then
            for _, x in ipairs({arg[i], arg[i + 1], how}) do out[#out + 1] = x end
        end
    end
    return out
end

-- lease_ms max_tries every_ms -> how many leases ran out. Workers and gateways, every second or so; of all their
-- calls only one within every_ms does it.
function op.reap(lease, max_tries, every)
    lease = number(lease)
    set_up()
    sign()
    local ago = now - number(call('HGET', META, 'reaped'))
    if ago >= 0 and ago < number(every) then return 0 end
    call('HSET', META, 'lease', lease, 'reaped', now)
    local late = now < number(call('HGET', META, 'hold')) and {} or call('XPENDING', JOBS, GROUP, 'IDLE', lease, '-', '+', 32)
    local lost = 0
    for _, p in ipairs(late) do
        local entry = call('XRANGE', JOBS, p[1], p[1])[1]
        local id = entry and entry[2][2]
        local v = id and get(id, 'state', 'entry', 'tries', 'cancel') or {}
        if v[1] ~= 'running' or v[2] ~= p[1] then
            drop_entry(p[1])
        else
            lost = lost + 1
            count('takeovers', 1)
            if v[4] then
                finish(id, 'cancelled', 'cancelled')
            elseif number(v[3]) >= number(max_tries) then
                bury(id, 'worker_lost')
            else
                put_back(id)
            end
        end
    end
    for _, id in ipairs(call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, 32)) do
        if not finish(id, 'failed', 'queue_timeout') then call('ZREM', DUE, id) end
    end
    -- Jobs whose record is gone (evicted, or expired with all workers away) leave nothing behind.
    for _, entry in ipairs(call('XRANGE', JOBS, '-', '+', 'COUNT', 8)) do
        if call('EXISTS', job_key(entry[2][2])) == 0 then drop_entry(entry[1]) end
    end
    -- Nothing is open: what such jobs were counted as has no end of its own.
    if call('XLEN', JOBS) == 0 then
        call('DEL', RUN, WAIT, HEAVY, USES)
        for _, priority in ipairs(PRIORITY) do call('DEL', base .. 'ready:' .. priority) end
        call('HSET', META, 'waiting', 0, 'bytes', 0)
    end
    local slots = 0
    for _, worker in ipairs(call('ZRANGE', WORKERS, 0, -1)) do
        slots = slots + number(call('HGET', base .. 'worker:' .. worker, 'slots'))
    end
    call('HSET', META, 'slots', slots)
    for _, worker in ipairs(call('ZRANGEBYSCORE', WORKERS, '-inf', now - 4 * lease, 'LIMIT', 0, 8)) do
        if #call('XPENDING', JOBS, GROUP, '-', '+', 1, worker) == 0 then
            call('XGROUP', 'DELCONSUMER', JOBS, GROUP, worker)
            call('ZREM', WORKERS, worker)
        end
    end
    return lost
end

-- The worker is leaving in good order.
function op.bye(worker)
    call('ZREM', WORKERS, worker)
    call('DEL', base .. 'worker:' .. worker)
    if call('EXISTS', JOBS) == 1 and #call('XPENDING', JOBS, GROUP, '-', '+', 1, worker) == 0 then
        call('XGROUP', 'DELCONSUMER', JOBS, GROUP, worker)
    end
    return 'ok'
end

-- id tenant -> 'ok', 'ended', 'none'
function op.cancel(id, tenant)
    local v = get(id, 'state', 'tenant')
    if not v[1] or v[2] ~= tenant then return 'none' end
    if v[1] == 'waiting' then
        finish(id, 'cancelled', 'cancelled')
    elseif v[1] == 'running' then
        call('HSET', job_key(id), 'cancel', 1)
    else
        return 'ended'
    end
    return 'ok'
end

-- id tenant gateway -> {} or state, stream, off, attempt, created, ended, code, ahead, worker, priority. A gateway's name
-- ('' none) is told of events from now on; the last four are.
function op.state(id, tenant, gateway)
    local v = get(id, 'state', 'tenant', 'stream', 'off', 'attempt', 'created', 'ended', 'code', 'prio', 'gw', 'worker')
    if not v[1] or v[2] ~= tenant then return {} end
    if gateway ~= '' then
        local names = {}
        for name in string.gmatch(v[10], '%S+') do
            if name ~= gateway then names[#names + 1] = name end
        end
        names[#names + 1] = gateway
        call('HSET', job_key(id), 'gw', table.concat(names, ' ', math.max(1, #names - 3)))
    end
    local ahead = v[1] == 'waiting' and call('ZRANK', lane_key(v[9], tenant), id) or 0
    return {v[1], v[3], v[4], v[5], v[6], v[7] or '0', v[8] or '', tostring(ahead or 0), v[11] or '', v[9]}
end

-- gateway id: a note in its own inbox, which wakes the one that waits there
function op.note(gateway, id)
    tell(id, gateway)
    return 'ok'
end

-- gateway: its inbox is there for a minute more -> where it ends.
function op.inbox(gateway)
    local inbox = base .. 'gw:' .. gateway
    if call('EXPIRE', inbox, 60) == 0 then
        call('XADD', inbox, '*', 'j', '')
        call('EXPIRE', inbox, 60)
    end
    return call('XREVRANGE', inbox, '+', '-', 'COUNT', 1)[1][1]
end

-- {fields of meta}, running, {about of a worker...}
function op.look()
    sign()
    local about, running = {}, 0
    if call('EXISTS', JOBS) == 1 then running = call('XPENDING', JOBS, GROUP)[1] end
    for _, worker in ipairs(call('ZRANGEBYSCORE', WORKERS, now - 60000, '+inf', 'LIMIT', 0, 256)) do
        local v = call('HGET', base .. 'worker:' .. worker, 'about')
        if v then about[#about + 1] = v end
    end
    return {call('HGETALL', META), running, about}
end

local fn = op[ARGV[1]]
if not fn then return redis.error_reply('ERR no such operation') end
-- A Redis that is full refuses the first write of a script unless it is one that takes no memory, and then no other. What
-- is open goes on and makes room; only new jobs and pictures are refused. (There is no such key.)
if ARGV[1] ~= 'submit' and ARGV[1] ~= 'blob' then call('DEL', base .. 'none') end
return fn(unpack(ARGV, 2))
