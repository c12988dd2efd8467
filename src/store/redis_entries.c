/* store/redis_entries.c - see redis_entries.h. */
#include "store/redis_entries.h"

#include "base/io.h"

#include <hiredis/hiredis.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- scripts; KEYS: entry, index, sizes --- */
/* Takes one member out, with its bytes. */
#define FORGET                                                                                     \
    "local function forget(member)\n"                                                              \
    "  redis.call('ZREM', KEYS[2], member)\n"                                                      \
    "  local n = redis.call('HGET', KEYS[3], member)\n"                                            \
    "  if n then\n"                                                                                \
    "    redis.call('HDEL', KEYS[3], member)\n"                                                    \
    "    redis.call('HINCRBY', KEYS[3], '', -n)\n"                                                 \
    "  end\n"                                                                                      \
    "end\n"

/* Index and sizes live a day longer than what they know of, of whatever life: never less than they
 * have. */
#define OUTLIVE                                                                                    \
    "local function outlive(life)\n"                                                               \
    "  for i = 2, 3 do\n"                                                                          \
    "    if redis.call('PTTL', KEYS[i]) < life + 86400000 then\n"                                  \
    "      redis.call('PEXPIRE', KEYS[i], life + 86400000)\n"                                      \
    "    end\n"                                                                                    \
    "  end\n"                                                                                      \
    "end\n"

/* ARGV: field, bytes, life in ms, budget, member, prefix of entries, overhead. An index that was
 * lost leaves a sum that nothing belongs to: it begins anew. */
static const char put_text[] = FORGET OUTLIVE
    "local entry, index, sizes = KEYS[1], KEYS[2], KEYS[3]\n"
    "local field, bytes, life, budget = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])\n"
    "local member, prefix = ARGV[5], ARGV[6]\n"
    "local t = redis.call('TIME')\n"
    "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
    "local more = #bytes\n"
    "if redis.call('EXISTS', entry) == 0 then\n"
    "  forget(member)\n"
    "  more = more + tonumber(ARGV[7])\n"
    "else\n"
    "  more = more - redis.call('HSTRLEN', entry, field)\n"
    "end\n"
    "redis.call('HSET', entry, field, bytes)\n"
    "redis.call('PEXPIRE', entry, field == 'h' and life or math.min(life, 60000))\n"
    "redis.call('ZADD', index, now + life, member)\n"
    "redis.call('HINCRBY', sizes, member, more)\n"
    "local sum = redis.call('HINCRBY', sizes, '', more)\n"
    "for i = 1, 1000 do\n"
    "  local first = redis.call('ZRANGE', index, 0, 1, 'WITHSCORES')\n"
    "  local at = first[1] == member and 3 or 1\n"
    "  local gone = first[at]\n"
    "  if not gone then\n"
    "    if sum > budget then redis.call('HSET', sizes, '', redis.call('HGET', sizes, member)) "
    "end\n"
    "    break\n"
    "  end\n"
    "  if sum <= budget and tonumber(first[at + 1]) > now then break end\n"
    "  redis.call('UNLINK', prefix .. gone)\n"
    "  forget(gone)\n"
    "  sum = tonumber(redis.call('HGET', sizes, ''))\n"
    "end\n"
    "outlive(life)\n"
    "return sum\n";

/* ARGV: member, life in ms. */
static const char touch_text[] =
    OUTLIVE "if redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 0 then return 0 end\n"
            "local t = redis.call('TIME')\n"
            "local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
            "redis.call('ZADD', KEYS[2], 'XX', now + ARGV[2], ARGV[1])\n"
            "outlive(tonumber(ARGV[2]))\n"
            "return 1\n";

/* ARGV: member. */
static const char drop_text[] = FORGET "redis.call('UNLINK', KEYS[1])\n"
                                       "forget(ARGV[1])\n"
                                       "return 1\n";

static enum mg_status call_script(struct mg_redis_link *link, const char *text,
                                  const struct mg_redis_names *names, const char *const *more,
                                  const size_t *n_more, size_t count, double limit,
                                  struct mg_err *err) {
    enum { FRONT = 6, MOST = 7 };
    const char *arg[FRONT + MOST] = {"EVALSHA",    NULL,         "3",
                                     names->entry, names->index, names->sizes};
    size_t n[FRONT + MOST];
    uint8_t digest[MG_SHA1_BYTES];
    char sha[MG_SHA1_HEX];
    struct mg_sha1 h;
    struct mg_err said = {0};
    mg_sha1_begin(&h);
    mg_sha1_update(&h, text, strlen(text));
    if (!mg_sha1_finish(&h, digest)) return mg_fail_memory(err, "script's name");
    mg_hex(digest, sizeof digest, sha);
    arg[1] = sha;
    for (size_t i = 0; i < FRONT; i++) n[i] = strlen(arg[i]);
    for (size_t i = 0; i < count; i++) {
        arg[FRONT + i] = more[i];
        n[FRONT + i] = n_more ? n_more[i] : strlen(more[i]);
    }
    int all = (int)(FRONT + count);
    enum mg_status st = mg_redis_link_call(link, limit, all, arg, n, NULL, &said);
    if (st && strstr(said.text, "NOSCRIPT")) { /* the server was restarted, or is another */
        mg_err_clear(&said);
        arg[0] = "EVAL";
        arg[1] = text;
        n[0] = 4;
        n[1] = strlen(text);
        st = mg_redis_link_call(link, limit, all, arg, n, NULL, &said);
    }
    return st ? mg_fail(err, st, said.code, "%s", said.text) : MG_OK;
}

/* --- names --- */
/* The tenant is known by a part of its API key's SHA-256, which is hashed once more. */
static void hash_tenant(const struct mg_store_key *key, char out[2 * MG_STORE_TENANT + 1]) {
    uint8_t digest[MG_SHA256_BYTES] = {0};
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    mg_sha256_update(&h, "margay tenant", 13);
    mg_sha256_update(&h, key->tenant, sizeof key->tenant);
    mg_sha256_finish(&h, digest);
    mg_hex(digest, MG_STORE_TENANT, out);
}

void mg_redis_names_make(const struct mg_store_key *key, struct mg_redis_names *out) {
    static const char kind[MG_N_STORE_KIND] = {'p', 'a'};
    char tenant[2 * MG_STORE_TENANT + 1], hex[MG_SHA256_HEX];
    uint8_t digest[MG_SHA256_BYTES] = {0}, which = (uint8_t)key->kind;
    struct mg_sha256 h;
    hash_tenant(key, tenant);
    mg_sha256_begin(&h);
    mg_sha256_update(&h, "margay entry", 12);
    mg_sha256_update(&h, &which, 1);
    mg_sha256_update(&h, key->tenant, sizeof key->tenant);
    mg_sha256_update(&h, key->model, sizeof key->model);
    mg_sha256_update(&h, key->digest, sizeof key->digest);
    mg_sha256_finish(&h, digest); /* all zero without memory: a front that doesn't match */
    mg_hex(digest, sizeof digest, hex);
    unsigned shard = digest[0] % MG_REDIS_SHARDS;
    snprintf(out->member, sizeof out->member, "%c:%s:%s", kind[key->kind], tenant, hex);
    snprintf(out->entry, sizeof out->entry, "margay:{%u}:v%d:%s", shard, MG_ENTRY_VERSION,
             out->member);
    snprintf(out->index, sizeof out->index, "margay:{%u}:v%d:index", shard, MG_ENTRY_VERSION);
    snprintf(out->sizes, sizeof out->sizes, "margay:{%u}:v%d:sizes", shard, MG_ENTRY_VERSION);
}

/* --- reading --- */
/* Asks for a field. MG_REDIS_HIT: its text is in *reply; MG_REDIS_DAMAGED: the key is no hash, so
 * somebody else's. */
static enum mg_status get_field(struct mg_redis_link *link, const char *entry, const char *field,
                                double limit, enum mg_redis_found *found, redisReply **reply,
                                struct mg_err *err) {
    const char *arg[] = {"HGET", entry, field};
    struct mg_err said = {0};
    *found = MG_REDIS_MISS;
    enum mg_status st = mg_redis_link_call(link, limit, 3, arg, NULL, reply, &said);
    if (st && strstr(said.text, "WRONGTYPE")) {
        *found = MG_REDIS_DAMAGED;
        return MG_OK;
    }
    if (st) return mg_fail(err, st, said.code, "%s", said.text);
    if ((*reply)->type == REDIS_REPLY_STRING) {
        *found = MG_REDIS_HIT;
        return MG_OK;
    }
    freeReplyObject(*reply);
    *reply = NULL;
    return MG_OK;
}

struct reading {
    struct mg_redis_link *link;
    const char *entry;
    double limit, end; /* of a command, of all */
    void (*progress)(void *user);
    void *user;
};

/* The pieces one after another into `body`; *found says whether all are there, of their size. */
static enum mg_status read_body(const struct reading *g, const struct mg_entry *e, uint8_t *body,
                                enum mg_redis_found *found, struct mg_err *err) {
    size_t n = mg_entry_pieces(e), at = 0;
    for (size_t i = 0; i < n; i++) {
        char field[24];
        redisReply *reply = NULL;
        struct mg_err said = {0};
        double left = g->end - mg_clock();
        if (left <= 0) return mg_fail(err, MG_ERR_LIMIT, "redis_late", "it is too slow");
        snprintf(field, sizeof field, "%zu", i);
        enum mg_status st = get_field(g->link, g->entry, field, left < g->limit ? left : g->limit,
                                      found, &reply, &said);
        if (st && left < g->limit && strcmp(said.code, "redis_timeout") == 0)
            return mg_fail(err, MG_ERR_LIMIT, "redis_late", "it is too slow");
        if (st) return mg_fail(err, st, said.code, "%s", said.text);
        if (*found == MG_REDIS_MISS) *found = MG_REDIS_PARTIAL;
        if (*found != MG_REDIS_HIT) return MG_OK;
        size_t want = mg_entry_piece(e, i);
        bool fits = reply->len == want;
        if (fits) memcpy(body + at, reply->str, want);
        freeReplyObject(reply);
        if (!fits) {
            *found = MG_REDIS_DAMAGED;
            return MG_OK;
        }
        at += want;
        if (g->progress) g->progress(g->user);
    }
    *found = MG_REDIS_HIT;
    return MG_OK;
}

enum mg_status mg_redis_entry_read(struct mg_redis_link *link, const struct mg_store_key *key,
                                   size_t max_body, double limit, double first_end, double end,
                                   void (*progress)(void *user), void *user,
                                   enum mg_redis_found *found, struct mg_store_value *value,
                                   struct mg_err *err) {
    struct mg_redis_names names;
    struct mg_entry e;
    redisReply *reply = NULL;
    mg_redis_names_make(key, &names);
    struct reading g = {link, names.entry, limit, end, progress, user};
    enum mg_status st =
        get_field(link, names.entry, "h", first_end - mg_clock(), found, &reply, err);
    if (st || *found != MG_REDIS_HIT) return st;
    if (progress) progress(user);
    *found = MG_REDIS_DAMAGED;
    bool good = mg_entry_parse(reply->str, reply->len, key, max_body, &e, NULL) == MG_OK;
    freeReplyObject(reply);
    if (!good || e.piece != MG_REDIS_PIECE) return MG_OK;
    uint8_t *body = mg_alloc(e.n_body, 1);
    if (!body) return mg_fail_memory(err, "kept entry");
    st = read_body(&g, &e, body, found, err);
    if (st == MG_OK && *found == MG_REDIS_HIT && mg_entry_check(&e, key, body, NULL) != MG_OK)
        *found = MG_REDIS_DAMAGED;
    if (st != MG_OK || *found != MG_REDIS_HIT) {
        free(body);
        return st;
    }
    *value = (struct mg_store_value){
        .made = e.made, .n_head = e.n_head, .n_body = e.n_body, .body = body};
    memcpy(value->head, e.head, sizeof value->head);
    return MG_OK;
}

/* --- writing --- */
static enum mg_status put_field(struct mg_redis_link *link, const struct mg_redis_space *space,
                                const struct mg_redis_names *names, const struct mg_store_put *put,
                                const char *field, const void *data, size_t n, double limit,
                                struct mg_err *err) {
    char life[24], budget[24], prefix[40], overhead[24];
    double seconds = space->seconds;
    if (put->seconds > 0 && put->seconds < seconds) seconds = put->seconds;
    snprintf(life, sizeof life, "%.0f", seconds * 1e3 + 1);
    snprintf(budget, sizeof budget, "%zu", space->budget / MG_REDIS_SHARDS);
    snprintf(overhead, sizeof overhead, "%d", MG_REDIS_OVERHEAD);
    size_t before = strlen(names->entry) - strlen(names->member);
    snprintf(prefix, sizeof prefix, "%.*s", (int)before, names->entry);
    const char *more[] = {field, data, life, budget, names->member, prefix, overhead};
    size_t n_more[] = {
        strlen(field),   n, strlen(life), strlen(budget), strlen(names->member), strlen(prefix),
        strlen(overhead)};
    return call_script(link, put_text, names, more, n_more, 7, limit, err);
}

enum mg_status mg_redis_entry_write(struct mg_redis_link *link, const struct mg_redis_space *space,
                                    const struct mg_store_put *put, double limit, double end,
                                    bool *known, struct mg_err *err) {
    struct mg_redis_names names;
    uint8_t front[MG_ENTRY_MAX];
    size_t n_front;
    redisReply *reply = NULL;
    mg_redis_names_make(&put->key, &names);
    const char *arg[] = {"HEXISTS", names.entry, "h"};
    *known = false;
    enum mg_status st = mg_redis_link_call(link, limit, 3, arg, NULL, &reply, err);
    if (st) return st;
    *known = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    freeReplyObject(reply);
    if (*known) return mg_redis_entry_touch(link, space, &put->key, limit, err);
    if (!mg_entry_write(&put->key, put->made, MG_REDIS_PIECE, put->head, put->n_head, put->body,
                        put->n_body, front, &n_front))
        return mg_fail_memory(err, "entry to keep");
    for (size_t i = 0, at = 0; at < put->n_body; i++, at += MG_REDIS_PIECE) {
        char field[24];
        if (mg_clock() > end) return mg_fail(err, MG_ERR_LIMIT, "redis_late", "it is too slow");
        snprintf(field, sizeof field, "%zu", i);
        st = put_field(link, space, &names, put, field, put->body + at,
                       mg_min_size(MG_REDIS_PIECE, put->n_body - at), limit, err);
        if (st) return st;
    }
    return put_field(link, space, &names, put, "h", front, n_front, limit, err);
}

enum mg_status mg_redis_entry_touch(struct mg_redis_link *link, const struct mg_redis_space *space,
                                    const struct mg_store_key *key, double limit,
                                    struct mg_err *err) {
    struct mg_redis_names names;
    char life[24];
    mg_redis_names_make(key, &names);
    snprintf(life, sizeof life, "%.0f", space->seconds * 1e3 + 1);
    const char *more[] = {names.member, life};
    return call_script(link, touch_text, &names, more, NULL, 2, limit, err);
}

enum mg_status mg_redis_entry_drop(struct mg_redis_link *link, const struct mg_store_key *key,
                                   double limit, struct mg_err *err) {
    struct mg_redis_names names;
    mg_redis_names_make(key, &names);
    const char *more[] = {names.member};
    return call_script(link, drop_text, &names, more, NULL, 1, limit, err);
}

enum mg_status mg_redis_entry_probe(struct mg_redis_link *link, double limit, struct mg_err *err) {
    redisReply *reply = NULL;
    enum mg_redis_found found;
    enum mg_status st = get_field(link, "margay:{0}:v1:probe", "h", limit, &found, &reply, err);
    if (reply) freeReplyObject(reply);
    return st;
}
