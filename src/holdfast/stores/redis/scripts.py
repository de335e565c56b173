"""What runs inside Redis or Valkey: small Lua scripts, each one atomic step.

A script writes, or returns what it found so that `core.records` can say why not. With the prefix P and the name M
(kind, unit separator, id):

    P:r:M   the record, a hash        P:ids        all names, ordered      P:exp    names by the moment they expire
    P:l:M   its log, by last number   P:own:WHO    a principal's names     P:dead   names by the moment they ended
    P:c:M   its claim, a hash         P:token      the last token          P:n:TOPIC  the channel of a topic
"""

import hashlib
from typing import Literal, TypeAlias

from holdfast.core.records import State
from holdfast.stores.contract import TURNS

Script: TypeAlias = Literal[
    "get",
    "get_all",
    "commit",
    "begin_turns",
    "touch",
    "end",
    "log",
    "claim",
    "renew",
    "release",
    "holder",
    "page",
    "count",
    "reap",
    "erase",
    "swap",
    "swap_log",
    "tokens",
]

SEPARATOR = "\x1f"  # no name has a control character, and it sorts before every character that a name can have
FIELDS = ("p", "r", "b", "l", "c", "t", "i", "m", "e", "n")

# ARGV[1] prefix, ARGV[2] name, ARGV[3] the moment of an injected clock or '', ARGV[4] how long the dead are kept or ''.
_HEAD = """
local P, M, rec, log, claim = ARGV[1]
local function use(name)
  M = name
  rec, log, claim = P..':r:'..M, P..':l:'..M, P..':c:'..M
end
use(ARGV[2])
local now
if ARGV[3] ~= '' then now = tonumber(ARGV[3]) else
  local t = redis.call('TIME')
  now = tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local function text(x) return string.format('%.17g', x) end
local function expiry(created, touched, idle, max_age)
  local a, b
  if idle and idle ~= '' then a = tonumber(touched) + tonumber(idle) end
  if max_age and max_age ~= '' then b = tonumber(created) + tonumber(max_age) end
  if a and b then return math.min(a, b) end
  return a or b
end
local function row() return redis.call('HMGET', rec, 'p', 'r', 'l', 'c', 't', 'i', 'm', 'e', 'n') end
local function alive(r)
  if not r[2] or (r[8] and r[8] ~= '') then return false end
  local x = expiry(r[4], r[5], r[6], r[7])
  return not x or x > now
end
local function held(fence)
  local c = redis.call('HMGET', claim, 't', 'e')
  return c[1] and c[1] == fence and tonumber(c[2]) > now
end
local function refusal()
  local r = row()
  local c = redis.call('HMGET', claim, 'o', 't', 'e')
  return {0, text(now), r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], c[1], c[2], c[3]}
end
local function keep(moment)
  if ARGV[4] == '' then return end
  for _, key in ipairs({rec, log}) do
    if moment then
      redis.call('PEXPIREAT', key, string.format('%.0f', (moment + tonumber(ARGV[4])) * 1000))
    else redis.call('PERSIST', key) end
  end
end
local function index(expires)
  if expires then redis.call('ZADD', P..':exp', text(expires), M) else redis.call('ZREM', P..':exp', M) end
  keep(expires)
end
"""

# Of the scripts that claim, that free a claim, and that return whole rows. Each function costs every run of a script.
_TAKE = """
local function take(owner, ttl)
  local token = redis.call('INCR', P..':token')
  local expires = now + tonumber(ttl)
  redis.call('HSET', claim, 'o', owner, 't', string.format('%d', token), 'e', text(expires), 'w', '')
  if ARGV[4] ~= '' then redis.call('PEXPIREAT', claim, string.format('%.0f', (expires + 60) * 1000)) end
  return token, text(expires)
end
"""
_FREE = (
    f"local TURNS = '{TURNS}'"
    """
local function free(notice)
  if redis.call('HGET', claim, 'w') == '1' then redis.call('PUBLISH', P..':n:'..TURNS, notice) end
  redis.call('DEL', claim)
end
"""
)
_FULL = """
local function full() return redis.call('HMGET', rec, 'p', 'r', 'b', 'l', 'c', 't', 'i', 'm', 'e', 'n') end
"""

_BODIES: dict[Script, str] = {
    # 5 how many writes, 6 how many claims to release; then of each write: name, expect, principal, body, count, idle,
    # max_age, created, nonce, entries, fence; then of each claim: name, token, the notice of its release.
    # Everything is checked before the first write, since a script that fails in the middle is not undone; with several
    # records also that each key has the type that it should have.
    "commit": _FREE
    + """
local writes, releases = tonumber(ARGV[5]), tonumber(ARGV[6])
local rows, fits = {}, true
for k = 1, writes do
  local a = 11 * k - 5
  use(ARGV[a + 1])
  local r = row()
  rows[k] = r
  if r[8] and r[8] ~= '' then fits = false break end
  if ARGV[a + 11] ~= '' and not held(ARGV[a + 11]) then fits = false break end
  if ARGV[a + 2] == '0' then
    if alive(r) then fits = false break end
  else
    if not alive(r) or r[1] ~= ARGV[a + 3] or r[2] ~= ARGV[a + 2] then fits = false break end
    if tonumber(ARGV[a + 8]) ~= 0 and tonumber(ARGV[a + 8]) ~= tonumber(r[4]) then fits = false break end
  end
  if writes > 1 then
    if ARGV[a + 5] ~= '0' then redis.call('ZCARD', log) end
    if ARGV[a + 2] == '0' then redis.call('ZCARD', P..':own:'..ARGV[a + 3]) end
  end
end
local behind = 6 + 11 * writes
for k = 0, releases - 1 do
  if not fits then break end
  use(ARGV[behind + 3 * k + 1])
  fits = held(ARGV[behind + 3 * k + 2])
end
if not fits then
  local found = {0}
  for k = 1, writes do use(ARGV[11 * k - 4]) found[#found + 1] = refusal() end
  for k = 0, releases - 1 do use(ARGV[behind + 3 * k + 1]) found[#found + 1] = refusal() end
  return found
end
if writes > 1 then redis.call('ZCARD', P..':ids') redis.call('ZCARD', P..':exp') end
local done = {1}
for k = 1, writes do
  local a = 11 * k - 5
  use(ARGV[a + 1])
  local r, principal = rows[k], ARGV[a + 3]
  local rev, created, last
  local touched = text(now)
  if ARGV[a + 2] == '0' then
    rev, created, last = 1, touched, 0
    if r[2] then
      redis.call('UNLINK', log)
      if r[1] ~= principal then redis.call('ZREM', P..':own:'..r[1], M) end
    end
    redis.call('ZADD', P..':ids', 0, M)
    redis.call('ZADD', P..':own:'..principal, 0, M)
  else
    rev, created, last = tonumber(r[2]) + 1, r[4], tonumber(r[3])
    if tonumber(r[5]) > now then touched = r[5] end
  end
  last = last + tonumber(ARGV[a + 5])
  if ARGV[a + 5] ~= '0' then
    redis.call('ZADD', log, last, string.format('%d', rev)..'|'..touched..'|'..ARGV[a + 10])
  end
  redis.call('HSET', rec, 'p', principal, 'r', string.format('%d', rev), 'b', ARGV[a + 4],
    'l', string.format('%d', last), 'c', created, 't', touched, 'i', ARGV[a + 6], 'm', ARGV[a + 7], 'e', '',
    'n', ARGV[a + 9])
  index(expiry(created, touched, ARGV[a + 6], ARGV[a + 7]))
  done[2 * k] = created
  done[2 * k + 1] = touched
end
for k = 0, releases - 1 do
  use(ARGV[behind + 3 * k + 1])
  free(ARGV[behind + 3 * k + 3])
end
return done
""",
    # 5 and further: names
    "get_all": _FULL
    + """
local found = {text(now)}
for k = 5, #ARGV do
  use(ARGV[k])
  found[#found + 1] = full()
end
return found
""",
    # 5 owner, 6 ttl, 7 '1' to leave word with the claims in the way, 8 and further: names
    "begin_turns": _TAKE
    + _FULL
    + """
local found, busy = {0, text(now)}, {}
for k = 8, #ARGV do
  use(ARGV[k])
  local c = redis.call('HMGET', claim, 'o', 't', 'e')
  if c[1] and tonumber(c[3]) > now and c[1] ~= ARGV[5] then busy[#busy + 1] = claim end
  found[#found + 1] = c
end
if #busy > 0 then
  if ARGV[7] == '1' then
    for _, key in ipairs(busy) do redis.call('HSET', key, 'w', '1') end
  end
  return found
end
local rows = {}
for k = 8, #ARGV do use(ARGV[k]) rows[k] = full() end
found = {1, text(now)}
for k = 8, #ARGV do
  use(ARGV[k])
  local token, expires = take(ARGV[5], ARGV[6])
  found[#found + 1] = token
  found[#found + 1] = expires
  found[#found + 1] = rows[k]
end
return found
""",
    # 5 fence
    "touch": """
local r = row()
if not alive(r) then return refusal() end
if ARGV[5] ~= '' and not held(ARGV[5]) then return refusal() end
local used = text(math.max(now, tonumber(r[5])))
redis.call('HSET', rec, 't', used)
index(expiry(r[4], used, r[6], r[7]))
return {1}
""",
    # 5 created, 6 fence
    "end": """
local r = row()
if not r[2] or (r[8] and r[8] ~= '') then return refusal() end
if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= tonumber(r[4]) then return refusal() end
if ARGV[6] ~= '' and not held(ARGV[6]) then return refusal() end
redis.call('HDEL', rec, 'b')
redis.call('HSET', rec, 'l', '0', 'e', text(now))
redis.call('UNLINK', log)
redis.call('ZREM', P..':exp', M)
redis.call('ZADD', P..':dead', text(now), M)
keep(now)
return {1}
""",
    # 5 owner, 6 ttl
    "claim": _TAKE
    + """
local c = redis.call('HMGET', claim, 'o', 't', 'e')
if c[1] and tonumber(c[3]) > now and c[1] ~= ARGV[5] then return {0, text(now), c[1], c[2], c[3]} end
return {1, take(ARGV[5], ARGV[6])}
""",
    # 5 token, 6 ttl
    "renew": """
local c = redis.call('HMGET', claim, 'o', 't', 'e')
if not held(ARGV[5]) then return {0, text(now), c[1], c[2], c[3]} end
local expires = now + tonumber(ARGV[6])
redis.call('HSET', claim, 'e', text(expires))
if ARGV[4] ~= '' then redis.call('PEXPIREAT', claim, string.format('%.0f', (expires + 60) * 1000)) end
return {1, c[1], text(expires)}
""",
    # 5 token, 6 the notice of its release
    "release": _FREE
    + """
if not held(ARGV[5]) then return 0 end
free(ARGV[6])
return 1
""",
    "holder": """
local c = redis.call('HMGET', claim, 'o', 't', 'e')
if not c[1] or tonumber(c[3]) <= now then return false end
return c
""",
    # 5 after, 6 limit, 7 newest first
    "log": """
local r = row()
if not alive(r) then return {} end
local found
if ARGV[7] == '1' then
  found = redis.call('ZREVRANGEBYSCORE', log, '+inf', '('..ARGV[5], 'WITHSCORES', 'LIMIT', 0, ARGV[6])
else
  found = redis.call('ZRANGEBYSCORE', log, '('..ARGV[5], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[6])
end
table.insert(found, 1, r[1])
return found
""",
    # ARGV[2] is the index here: 5 from, 6 to, 7 how many to look at, 8 how many bytes to return
    "page": """
local names = redis.call('ZRANGEBYLEX', M, ARGV[5], ARGV[6], 'LIMIT', 0, ARGV[7])
local found, bytes = {text(now)}, 0
for _, name in ipairs(names) do
  local r = redis.call('HMGET', P..':r:'..name, 'p', 'r', 'b', 'l', 'c', 't', 'i', 'm', 'e', 'n')
  found[#found + 1] = name
  found[#found + 1] = r
  if r[3] then bytes = bytes + #r[3] end
  if bytes > tonumber(ARGV[8]) then break end
end
return found
""",
    # ARGV[2] is the index here: 5 from, 6 to, 7 how many to look at, 8 state, 9 principal or ''
    "count": """
local names = redis.call('ZRANGEBYLEX', M, ARGV[5], ARGV[6], 'LIMIT', 0, ARGV[7])
local count = 0
for _, name in ipairs(names) do
  local f = redis.call('HMGET', P..':r:'..name, 'c', 't', 'i', 'm', 'e', 'p')
  if f[1] and (ARGV[9] == '' or f[6] == ARGV[9]) then
    local state = 'live'
    if f[5] and f[5] ~= '' then state = 'ended' else
      local x = expiry(f[1], f[2], f[3], f[4])
      if x and x <= now then state = 'expired' end
    end
    if state == ARGV[8] then count = count + 1 end
  end
end
return {count, names[#names] or ''}
""",
    # ARGV[2] is 'exp' or 'dead' here: 5 age, 6 kind and separator or '', 7 offset, 8 how many
    "reap": """
local names = redis.call('ZRANGEBYSCORE', P..':'..M, '-inf', text(now - tonumber(ARGV[5])), 'LIMIT', ARGV[7], ARGV[8])
local removed = 0
for _, name in ipairs(names) do
  if ARGV[6] == '' or string.sub(name, 1, #ARGV[6]) == ARGV[6] then
    local owner = redis.call('HGET', P..':r:'..name, 'p')
    redis.call('UNLINK', P..':r:'..name, P..':l:'..name)
    for _, key in ipairs({':ids', ':exp', ':dead'}) do redis.call('ZREM', P..key, name) end
    if owner then redis.call('ZREM', P..':own:'..owner, name) end
    removed = removed + 1
  end
end
return {removed, #names}
""",
    # ARGV[2] is the index of a principal here: 5 from, 6 to, 7 how many
    "erase": """
local names = redis.call('ZRANGEBYLEX', M, ARGV[5], ARGV[6], 'LIMIT', 0, ARGV[7])
for _, name in ipairs(names) do
  redis.call('UNLINK', P..':r:'..name, P..':l:'..name)
  for _, key in ipairs({P..':ids', P..':exp', P..':dead', M}) do redis.call('ZREM', key, name) end
end
return #names
""",
    # 5 rev, 6 nonce, 7 body
    "swap": """
local r = redis.call('HMGET', rec, 'r', 'n', 'e')
if r[1] ~= ARGV[5] or r[2] ~= ARGV[6] or r[3] ~= '' then return 0 end
redis.call('HSET', rec, 'b', ARGV[7])
return 1
""",
    # 5 last, 6 the packed entry as it is, 7 as it shall be
    "swap_log": """
if redis.call('ZREM', log, ARGV[6]) == 0 then return 0 end
redis.call('ZADD', log, ARGV[5], ARGV[7])
return 1
""",
    # 5 at least
    "tokens": """
local token = tonumber(redis.call('GET', P..':token') or '0')
if token < tonumber(ARGV[5]) then redis.call('SET', P..':token', ARGV[5]) token = tonumber(ARGV[5]) end
return token
""",
}


def _named(text: str) -> tuple[str, str]:
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# The one that is asked most stands alone: what the others share would cost it more than it does.
_GET = """
local r = redis.call('HMGET', ARGV[1]..':r:'..ARGV[2], 'p', 'r', 'b', 'l', 'c', 't', 'i', 'm', 'e', 'n')
if not r[2] then return false end
if ARGV[3] ~= '' then r[11] = ARGV[3] r[12] = '0' return r end
local t = redis.call('TIME')
r[11], r[12] = t[1], t[2]
return r
"""

SCRIPTS: dict[Script, tuple[str, str]] = {
    "get": _named(_GET),
    **{name: _named(_HEAD + body) for name, body in _BODIES.items()},
}
"""The text of each, and the digest by which the server knows it."""


def name_of(kind: str, id: str) -> str:
    return f"{kind}{SEPARATOR}{id}"


def bounds(kind: str | None, after: tuple[str, str] | None) -> tuple[bytes, bytes]:
    """The range of names for ZRANGEBYLEX: of one kind or all, behind a cursor or from the start."""
    low, high = b"-", b"+"
    if kind is not None:
        low, high = b"[" + kind.encode() + b"\x1f", b"(" + kind.encode() + b"\x20"
    if after is not None:
        behind = b"(" + name_of(*after).encode("utf-8", "surrogateescape")
        low = behind if kind is None or behind[1:] >= low[1:] else low
    return low, high


def key_of_index(prefix: str, principal: str | None) -> str:
    return f"{prefix}:ids" if principal is None else f"{prefix}:own:{principal}"


def matches(state: State, wanted: State | None) -> bool:
    return wanted is None or state == wanted
