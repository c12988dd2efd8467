/* The store in Redis against a real redis-server: what comes back, what is not believed, budget and
 * expiry, rights, and that nobody waits for a server that is away. */
#include "store/redis_store.h"
#include "base/io.h"
#include "store/breaker.h"

#include <hiredis/hiredis.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MB ((size_t)1 << 20)
#define SLACK 0.4 /* of a busy machine */

extern char **environ;

static void pause_for(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

/* --- the server --- */
struct server {
    int port;
    pid_t pid;
    char url[64];
    const char *more[8]; /* further arguments */
};

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static struct mg_redis_link *admin(const struct server *s) {
    struct mg_redis_url url;
    struct mg_redis_link *k = NULL;
    assert_int_equal(mg_redis_url_parse(s->url, &url, NULL), MG_OK);
    for (int i = 0; i < 400 && !k; i++) {
        if (mg_redis_link_open(&url, NULL, 1, &k, NULL) != MG_OK) pause_for(0.025);
        int status;
        if (!k && waitpid(s->pid, &status, WNOHANG) == s->pid) return NULL;
    }
    return k;
}

/* Those that run; they end with the program, also when a test has failed. */
static pid_t running[64];

static void kill_all(void) {
    for (size_t i = 0; i < 64; i++)
        if (running[i]) kill(running[i], SIGKILL);
}

static void note_pid(pid_t from, pid_t to) {
    size_t i = 0;
    while (i < 63 && running[i] != from) i++;
    running[i] = to;
}

/* On its port, or on a free one. */
static void start(struct server *s) {
    for (int attempt = 0; attempt < 5; attempt++) {
        char port[16];
        bool fresh = !s->port;
        bool cluster = s->more[0] && !strcmp(s->more[0], "--cluster-enabled");
        if (fresh) s->port = free_port();
        /* it listens at port + 10,000 as well */
        for (int i = 0; cluster && s->port > 50000 && i < 1000; i++) s->port = free_port();
        snprintf(port, sizeof port, "%d", s->port);
        snprintf(s->url, sizeof s->url, "redis://127.0.0.1:%d", s->port);
        const char *arg[24] = {"redis-server", "--port",     port,     "--bind",
                               "127.0.0.1",    "--save",     "",       "--dir",
                               "/tmp",         "--loglevel", "warning"};
        size_t n = 11;
        for (size_t i = 0; i < 8 && s->more[i]; i++) arg[n++] = s->more[i];
        posix_spawn_file_actions_t f;
        posix_spawn_file_actions_init(&f);
        posix_spawn_file_actions_addopen(&f, 1, "/dev/null", O_WRONLY, 0);
        if (posix_spawnp(&s->pid, arg[0], &f, NULL, (char **)arg, environ) != 0)
            fail_msg("redis-server is missing: tools/install.sh test installs it");
        posix_spawn_file_actions_destroy(&f);
        note_pid(0, s->pid);
        struct mg_redis_link *k = admin(s);
        if (k) {
            mg_redis_link_close(k);
            return;
        }
        note_pid(s->pid, 0);
        if (fresh) s->port = 0;
    }
    fail_msg("redis-server does not start");
}

static void kill_server(struct server *s) {
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    note_pid(s->pid, 0);
}

/* One command of words; gives an integer or a text's length, -1 for nil; fails on errors. */
static long long run(const struct server *s, const char *words, const void *last, size_t n_last,
                     char *text, size_t cap) {
    const char *arg[32];
    size_t n[32], count = 0;
    char copy[2048];
    struct mg_err err = {0};
    redisReply *reply = NULL;
    struct mg_redis_link *k = admin(s);
    assert_non_null(k);
    snprintf(copy, sizeof copy, "%s", words);
    char *save = NULL;
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        arg[count] = w;
        n[count++] = strlen(w);
    }
    if (last) {
        arg[count] = last;
        n[count++] = n_last;
    }
    if (mg_redis_link_call(k, 5, (int)count, arg, n, &reply, &err) != MG_OK)
        fail_msg("%s: %s", words, err.text);
    long long out = reply->type == REDIS_REPLY_INTEGER ? reply->integer
                    : reply->type == REDIS_REPLY_NIL   ? -1
                                                       : (long long)reply->len;
    if (text && reply->str) snprintf(text, cap, "%s", reply->str);
    freeReplyObject(reply);
    mg_redis_link_close(k);
    return out;
}

static long long ask(const struct server *s, const char *words) {
    return run(s, words, NULL, 0, NULL, 0);
}

/* --- the store --- */
static struct mg_byte_store *open_with(const char *url, double seconds, size_t budget) {
    struct mg_redis_store_options o = {.url = url, .seconds = seconds, .budget = budget};
    struct mg_byte_store *store;
    struct mg_err err = {0};
    if (mg_redis_store_open(&o, &store, &err) != MG_OK) fail_msg("%s", err.text);
    return store;
}

static struct mg_store_counts counts(struct mg_byte_store *store) {
    struct mg_store_counts c;
    mg_store_counts(store, &c);
    return c;
}

static struct mg_store_key key_of(unsigned i, uint8_t tenant) {
    struct mg_store_key k = {.kind = MG_STORE_PICTURE};
    memset(k.tenant, tenant, sizeof k.tenant);
    memset(k.model, 7, sizeof k.model);
    memcpy(k.digest, &i, sizeof i);
    return k;
}

static uint8_t *body_of(unsigned seed, size_t n) {
    uint8_t *b = malloc(n + !n);
    assert_non_null(b);
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        b[i] = (uint8_t)(x >> 24);
    }
    return b;
}

static void put(struct mg_byte_store *store, const struct mg_store_key *key, unsigned seed,
                size_t n) {
    uint8_t head[4] = {1, 2, 3, (uint8_t)seed}, *body = body_of(seed, n);
    mg_store_put(store, key, head, sizeof head, body, n, 0, free, body);
}

/* Until nothing is queued and n puts more have ended than at the beginning. */
static uint64_t ended(struct mg_byte_store *store) {
    struct mg_store_counts c = counts(store);
    uint64_t n = 0;
    for (int i = 0; i < MG_N_STORE_KIND; i++)
        n += c.put[i].kept + c.put[i].known + c.put[i].failed + c.put[i].refused + c.put[i].dropped;
    return n;
}

static void put_and_wait(struct mg_byte_store *store, const struct mg_store_key *key, unsigned seed,
                         size_t n) {
    uint64_t before = ended(store);
    put(store, key, seed, n);
    for (int i = 0; i < 4000 && ended(store) == before; i++) pause_for(0.001);
    assert_int_equal(ended(store), before + 1);
}

/* FOUND with the right bytes (1), or missing (0); as the engine waits for it. */
static int look(struct mg_byte_store *store, const struct mg_store_key *key, unsigned seed,
                size_t n) {
    struct mg_store_value v = {0};
    struct mg_store_read *r = mg_store_read_begin(store, key, 64 * MB);
    if (!r) return 0;
    enum mg_store_state state;
    double end = mg_clock() + 5;
    while ((state = mg_store_read_take(r, &v)) == MG_STORE_WAITING && mg_clock() < end)
        pause_for(0.0005);
    mg_store_read_end(r);
    if (state != MG_STORE_FOUND) return 0;
    uint8_t *body = body_of(seed, n);
    assert_int_equal(v.n_body, n);
    assert_memory_equal(v.body, body, n);
    assert_int_equal((uintptr_t)v.body % 64, 0);
    assert_int_equal(v.n_head, 4);
    assert_int_equal(v.head[3], (uint8_t)seed);
    free(body);
    free(v.body);
    return 1;
}

static bool wait_up(struct mg_byte_store *store, bool up, double seconds) {
    double end = mg_clock() + seconds;
    while (counts(store).up != up && mg_clock() < end) pause_for(0.005);
    return counts(store).up == up;
}

static void round_trips(void **state) {
    (void)state;
    static const size_t size[] = {0,
                                  1,
                                  1000,
                                  MG_REDIS_PIECE - 1,
                                  MG_REDIS_PIECE,
                                  MG_REDIS_PIECE + 1,
                                  4 * MG_REDIS_PIECE,
                                  11 * MG_REDIS_PIECE + 7};
    struct server s = {0};
    start(&s);
    struct mg_byte_store *a = open_with(s.url, 100, 1024 * MB),
                         *b = open_with(s.url, 100, 1024 * MB);
    for (unsigned i = 0; i < 8; i++) {
        struct mg_store_key key = key_of(i, 1), other = key_of(i, 2), model = key;
        model.model[31] ^= 1;
        assert_int_equal(look(a, &key, i, size[i]), 0);
        put_and_wait(a, &key, i, size[i]);
        assert_int_equal(look(b, &key, i, size[i]), 1);
        assert_int_equal(look(b, &other, i, size[i]), 0); /* another tenant's */
        assert_int_equal(look(b, &model, i, size[i]), 0); /* another model's */
        put_and_wait(b, &key, i, size[i]);                /* it is there */
        if (i == 3) ask(&s, "SCRIPT FLUSH");
    }
    struct mg_store_counts ca = counts(a), cb = counts(b);
    assert_int_equal(ca.put[0].kept, 8);
    assert_int_equal(cb.put[0].known, 8);
    assert_int_equal(cb.put[0].kept, 0);
    assert_int_equal(cb.read[0].hits, 8);
    assert_int_equal(cb.read[0].misses, 16);
    assert_int_equal(ca.read[0].failed + cb.read[0].failed + cb.read[0].late, 0);
    assert_true(ca.up && cb.up && !ca.refuses);
    mg_store_close(a);
    mg_store_close(b);
    kill_server(&s);
}

/* Entries that somebody has got at: each is a miss, and is deleted. */
static void not_believed(void **state) {
    (void)state;
    struct server s = {0};
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 100, 1024 * MB);
    struct mg_store_key key = key_of(1, 1);
    struct mg_redis_names names;
    const size_t n = 2 * MG_REDIS_PIECE + 100;
    char words[400];
    uint8_t front[MG_ENTRY_MAX], *body = body_of(1, n);
    size_t n_front;
    mg_redis_names_make(&key, &names);
    uint8_t head[4] = {1, 2, 3, 1};
    assert_true(
        mg_entry_write(&key, 1764700000, MG_REDIS_PIECE, head, 4, body, n, front, &n_front));
    for (int i = 0; i < 12; i++) {
        uint64_t damaged = counts(store).read[0].damaged, misses = counts(store).read[0].misses;
        put_and_wait(store, &key, 1, n);
        assert_int_equal(look(store, &key, 1, n), 1);
        uint8_t other[MG_ENTRY_MAX + 64] = {0};
        memcpy(other, front, n_front);
        snprintf(words, sizeof words, "HSET %s h", names.entry);
        switch (i) {
        case 0: other[8] ^= 2; break;           /* version */
        case 1: other[0] ^= 1; break;           /* foreign */
        case 2: other[n_front - 1] ^= 1; break; /* the head */
        case 3: other[110] = 0x7f; break;       /* length */
        case 4:
            other[112] = other[113] = other[114] = 0; /* no pieces */
            break;
        case 5: other[130] ^= 1; break; /* digest */
        }
        if (i < 6) run(&s, words, other, n_front, NULL, 0);
        if (i == 6) run(&s, words, other, n_front - 5, NULL, 0);
        if (i == 7) run(&s, words, "", 0, NULL, 0);
        snprintf(words, sizeof words, "HSET %s 1", names.entry);
        if (i == 8) run(&s, words, "short", 5, NULL, 0);
        body[0] ^= 1;
        snprintf(words, sizeof words, "HSET %s 0", names.entry);
        if (i == 9) run(&s, words, body, MG_REDIS_PIECE, NULL, 0);
        body[0] ^= 1;
        snprintf(words, sizeof words, "SET %s string", names.entry);
        if (i == 10) ask(&s, words);
        snprintf(words, sizeof words, "HDEL %s 2", names.entry);
        if (i == 11) ask(&s, words); /* a piece that is gone: a miss like any other */
        assert_int_equal(look(store, &key, 1, n), 0);
        assert_int_equal(counts(store).read[0].misses, misses + (i == 11));
        assert_int_equal(counts(store).read[0].damaged, damaged + (i != 11));
        snprintf(words, sizeof words, "EXISTS %s", names.entry);
        for (int k = 0; k < 2000 && ask(&s, words); k++) pause_for(0.001);
        assert_int_equal(ask(&s, words), 0);
        assert_int_equal(look(store, &key, 1, n), 0);
    }
    assert_true(counts(store).up);
    free(body);
    mg_store_close(store);
    kill_server(&s);
}

/* Bytes that the fields of all entries have, and what is counted of them. */
static void sums(const struct server *s, long long *held, long long *counted) {
    static const char script[] =
        "local held, counted = 0, 0 for _, k in ipairs(redis.call('KEYS', 'margay:*')) do "
        "if string.sub(k, -5) == 'sizes' then counted = counted + redis.call('HGET', k, '') "
        "elseif string.sub(k, -5) ~= 'index' then "
        "for _, v in ipairs(redis.call('HVALS', k)) do held = held + #v end end end "
        "return held .. ' ' .. counted";
    const char *arg[] = {"EVAL", script, "0"};
    struct mg_err err = {0};
    redisReply *reply = NULL;
    struct mg_redis_link *k = admin(s);
    if (mg_redis_link_call(k, 5, 3, arg, NULL, &reply, &err) != MG_OK) fail_msg("%s", err.text);
    assert_int_equal(sscanf(reply->str, "%lld %lld", held, counted), 2);
    freeReplyObject(reply);
    mg_redis_link_close(k);
}

/* A key of the given shard. */
static struct mg_store_key in_shard(unsigned shard, unsigned *from) {
    for (;; (*from)++) {
        struct mg_store_key key = key_of(*from, 1);
        struct mg_redis_names names;
        unsigned found;
        mg_redis_names_make(&key, &names);
        assert_int_equal(sscanf(names.entry, "margay:{%u}", &found), 1);
        if (found != shard) continue;
        ++*from;
        return key;
    }
}

static void budget(void **state) {
    (void)state;
    const size_t all = 16 * MB; /* a megabyte a shard */
    struct server s = {0};
    long long held, counted;
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 100, all);
    for (unsigned i = 0; i < 300; i++) {
        struct mg_store_key key = key_of(i, (uint8_t)(i % 3));
        put_and_wait(store, &key, i, 1000 + (i * 7919) % (300 << 10));
        if (i % 25) continue;
        sums(&s, &held, &counted);
        assert_true(counted <= (long long)all && held <= counted);
    }
    sums(&s, &held, &counted);
    assert_true(counted > (long long)all / 2 && held > counted * 9 / 10);
    /* over a shard's part: not even tried */
    struct mg_store_key large = key_of(9999, 1);
    put(store, &large, 1, MB + 1);
    assert_int_equal(counts(store).put[0].dropped, 1);
    /* what was used last stays: of ten in a shard the first is read again and again */
    unsigned at = 10000;
    struct mg_store_key used = in_shard(3, &at);
    put_and_wait(store, &used, 5, 200 << 10);
    for (int i = 0; i < 10; i++) {
        struct mg_store_key key = in_shard(3, &at);
        put_and_wait(store, &key, 6, 200 << 10);
        pause_for(0.01); /* the order of use is that of milliseconds */
        assert_int_equal(look(store, &used, 5, 200 << 10), 1);
        pause_for(0.01);
    }
    assert_int_equal(counts(store).put[0].failed + counts(store).put[0].refused, 0);
    mg_store_close(store);

    /* expiry: entries go, and with the next put of their shard what is counted of them */
    ask(&s, "FLUSHALL");
    store = open_with(s.url, 0.5, all);
    struct mg_store_key gone = in_shard(4, &at), next = in_shard(4, &at);
    put_and_wait(store, &gone, 1, 100000);
    assert_int_equal(look(store, &gone, 1, 100000), 1);
    pause_for(0.7);
    assert_int_equal(look(store, &gone, 1, 100000), 0);
    put_and_wait(store, &next, 2, 1000);
    sums(&s, &held, &counted);
    assert_true(counted < 2000);
    /* used again and again it stays, though it would have expired */
    for (int i = 0; i < 12; i++) {
        assert_int_equal(look(store, &next, 2, 1000), 1);
        pause_for(0.1);
    }
    mg_store_close(store);
    kill_server(&s);
}

/* An entry of a short life comes into a shard whose others live long: what is counted of these has
 * to outlive them. */
static void lives(void **state) {
    (void)state;
    const double day = 86400;
    struct server s = {0};
    struct mg_redis_names names;
    unsigned at = 0;
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 10 * day, 16 * MB);
    struct mg_store_key lasting = in_shard(5, &at), brief = in_shard(5, &at);
    char words[256];
    mg_redis_names_make(&lasting, &names);
    put_and_wait(store, &lasting, 1, 1000);
    uint8_t head[4] = {1, 2, 3, 2}, *body = body_of(2, 1000);
    uint64_t before = ended(store);
    mg_store_put(store, &brief, head, sizeof head, body, 1000, 60, free, body);
    for (int i = 0; i < 4000 && ended(store) == before; i++) pause_for(0.001);
    assert_int_equal(counts(store).put[0].kept, 2);
    snprintf(words, sizeof words, "PTTL %s", names.entry);
    long long life = ask(&s, words);
    assert_true(life > 9 * day * 1000);
    const char *const books[] = {names.index, names.sizes};
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "PTTL %s", books[i]);
        assert_true(ask(&s, words) > life);
    }
    /* nor does a touch by one that keeps things for a shorter time */
    struct mg_byte_store *other = open_with(s.url, 60, 16 * MB);
    assert_int_equal(look(other, &brief, 2, 1000) + look(other, &brief, 2, 1000), 2);
    mg_store_close(other); /* what it has queued is done */
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "PTTL %s", books[i]);
        assert_true(ask(&s, words) > life);
    }
    mg_store_close(store);
    kill_server(&s);
}

/* Reads one after another while the server is away: none takes longer than the limit, then none is
 * begun. Gives how many waited. */
static int wait_in_vain(struct mg_byte_store *store) {
    struct mg_store_key key = key_of(1, 1);
    int waited = 0;
    for (int i = 0; i < 200; i++) {
        double begin = mg_clock();
        struct mg_store_value v;
        struct mg_store_read *r = mg_store_read_begin(store, &key, MB);
        assert_true(mg_clock() - begin < 0.1);
        if (!r) return waited;
        while (mg_store_read_take(r, &v) == MG_STORE_WAITING) {
            assert_true(mg_clock() - begin < MG_REDIS_LIMIT + SLACK);
            pause_for(0.001);
        }
        waited++;
        mg_store_read_end(r);
    }
    fail_msg("the breaker does not open");
    return waited;
}

static void away(void **state) {
    (void)state;
    struct server s = {0};
    struct mg_store_key key = key_of(1, 1);
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 100, 1024 * MB);
    put_and_wait(store, &key, 1, 100000);
    /* paused */
    for (int i = 0; i < 2; i++) {
        kill(s.pid, SIGSTOP);
        assert_true(wait_in_vain(store) <= MG_BREAKER_THRESHOLD + 1);
        assert_false(counts(store).up);
        assert_null(mg_store_read_begin(store, &key, MB));
        put(store, &key, 1, 100000);
        assert_true(counts(store).put[0].dropped > 0);
        kill(s.pid, SIGCONT);
        assert_true(wait_up(store, true, 5));
        assert_int_equal(look(store, &key, 1, 100000), 1);
    }
    /* killed and started again, empty */
    kill_server(&s);
    assert_true(wait_in_vain(store) <= MG_BREAKER_THRESHOLD + 1);
    assert_true(wait_up(store, false, 1));
    start(&s);
    assert_true(wait_up(store, true, 5));
    assert_int_equal(look(store, &key, 1, 100000), 0);
    put_and_wait(store, &key, 1, 100000);
    assert_int_equal(look(store, &key, 1, 100000), 1);
    /* restarted between two questions: nobody notices */
    uint64_t failed = counts(store).read[0].failed;
    kill_server(&s);
    start(&s);
    look(store, &key, 1, 100000);
    assert_true(counts(store).read[0].failed <= failed + 1);
    /* nobody asks: it is noticed all the same */
    assert_true(wait_up(store, true, 5));
    kill_server(&s);
    assert_true(wait_up(store, false, MG_REDIS_IDLE + 1 + SLACK));
    mg_store_close(store);
    /* away from the beginning */
    double begin = mg_clock();
    store = open_with(s.url, 100, 1024 * MB);
    assert_true(mg_clock() - begin < MG_REDIS_LIMIT + SLACK);
    assert_false(counts(store).up);
    assert_null(mg_store_read_begin(store, &key, MB));
    start(&s);
    assert_true(wait_up(store, true, 5));
    mg_store_close(store);
    kill_server(&s);
}

/* A server that stands still while much is put: what waits is bounded, closing is quick. */
static void bounded(void **state) {
    (void)state;
    struct server s = {0};
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 100, 4096 * MB);
    kill(s.pid, SIGSTOP);
    for (unsigned i = 0; i < 40; i++) {
        struct mg_store_key key = key_of(i, 1);
        put(store, &key, i, 8 * MB);
        assert_true(counts(store).queued_bytes <= MG_REDIS_MAX_PUT_BYTES);
    }
    assert_true(counts(store).put[0].dropped >= 23);
    /* reads that nobody waits for any more, and more than there is room for */
    for (unsigned i = 0; i < MG_REDIS_MAX_READS + 20; i++) {
        struct mg_store_key key = key_of(i, 1);
        mg_store_read_end(mg_store_read_begin(store, &key, MB));
    }
    double begin = mg_clock();
    mg_store_close(store);
    assert_true(mg_clock() - begin < 2 + SLACK);
    kill(s.pid, SIGCONT);
    /* what was put just before the end is kept */
    store = open_with(s.url, 100, 4096 * MB);
    for (unsigned i = 100; i < 110; i++) {
        struct mg_store_key key = key_of(i, 1);
        put(store, &key, i, MB);
    }
    mg_store_close(store);
    store = open_with(s.url, 100, 4096 * MB);
    for (unsigned i = 100; i < 110; i++) {
        struct mg_store_key key = key_of(i, 1);
        assert_int_equal(look(store, &key, i, MB), 1);
    }
    mg_store_close(store);
    kill_server(&s);
}

/* What docs/redis.md gives its user. */
static void grant(const struct server *s, const char *rights) {
    char words[700];
    snprintf(words, sizeof words, "ACL SETUSER margay reset on >canary %s", rights);
    ask(s, words);
}

/* The line of docs/redis.md behind "user margay on >PASSWORD". */
static void documented(char *out, size_t cap) {
    struct mg_buf text = {0};
    assert_int_equal(mg_file_read("docs/redis.md", MB, &text, NULL), MG_OK);
    const char *begin = strstr((char *)text.data, "user margay on >PASSWORD ");
    assert_non_null(begin);
    begin += strlen("user margay on >PASSWORD ");
    snprintf(out, cap, "%.*s", (int)strcspn(begin, "\n"), begin);
    mg_buf_free(&text);
}

/* Whether a user with these rights is refused anything. */
static bool is_missed(const struct server *s, const char *url, const char *words) {
    static unsigned at = 20000;
    grant(s, words);
    struct mg_byte_store *store = open_with(url, 0.3, 16 * MB);
    struct mg_store_key k[3] = {in_shard(1, &at), in_shard(1, &at), in_shard(1, &at)};
    for (int i = 0; i < 3; i++) put_and_wait(store, &k[i], 1, 500000);
    pause_for(0.35); /* expired: the next put clears up */
    put_and_wait(store, &k[0], 1, 500000);
    look(store, &k[0], 1, 500000);
    pause_for(0.05);
    struct mg_store_counts c = counts(store);
    mg_store_close(store);
    return c.refuses || c.put[0].refused || c.put[0].failed || c.read[0].failed || !c.up;
}

static void rights(void **state) {
    (void)state;
    struct server s = {0};
    struct mg_store_key key = key_of(1, 1), second = key_of(2, 1), third = key_of(3, 1);
    char url[96], wrong[96], all[512], less[512];
    start(&s);
    documented(all, sizeof all);
    grant(&s, all);
    snprintf(url, sizeof url, "redis://margay:canary@127.0.0.1:%d", s.port);
    snprintf(wrong, sizeof wrong, "redis://margay:wrong@127.0.0.1:%d", s.port);
    struct mg_byte_store *store = open_with(wrong, 100, 64 * MB);
    assert_false(counts(store).up);
    assert_null(mg_store_read_begin(store, &key, MB));
    mg_store_close(store);
    /* with these rights all of it works: put, read, used again, dropped, budget */
    store = open_with(url, 100, 16 * MB);
    assert_true(counts(store).up);
    for (unsigned i = 0; i < 60; i++) {
        struct mg_store_key k = key_of(i + 50, 1);
        put_and_wait(store, &k, i, 600000);
        assert_int_equal(look(store, &k, i, 600000), 1);
    }
    put_and_wait(store, &key, 1, 1000);
    put_and_wait(store, &key, 1, 1000);
    struct mg_redis_names names;
    mg_redis_names_make(&key, &names);
    char words[300];
    snprintf(words, sizeof words, "HSET %s h foreign", names.entry);
    ask(&s, words);
    assert_int_equal(look(store, &key, 1, 1000), 0);
    snprintf(words, sizeof words, "EXISTS %s", names.entry);
    for (int i = 0; i < 2000 && ask(&s, words); i++) pause_for(0.001);
    assert_int_equal(ask(&s, words), 0);
    struct mg_store_counts c = counts(store);
    assert_int_equal(c.put[0].refused + c.put[0].failed + c.read[0].failed, 0);
    assert_false(c.refuses);
    /* none of them is too many: without any one of them something is refused */
    put_and_wait(store, &second, 2, 1000);
    assert_false(is_missed(&s, url, all));
    for (const char *w = all; (w = strstr(w, " +")) != NULL; w++) {
        size_t n = strcspn(w + 1, " ");
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)n, w + 1);
        if (!strcmp(word, "+eval") || !strcmp(word, "+ping") || !strcmp(word, "+select")) continue;
        snprintf(less, sizeof less, "%.*s%s", (int)(w - all), all, w + 1 + n);
        if (!is_missed(&s, url, less)) fail_msg("%s is not needed", word);
    }
    grant(&s, all);
    /* reading goes on where nothing may be put */
    grant(&s, "~margay:* resetchannels -@all +hget +hexists");
    put(store, &third, 3, 1000);
    for (int i = 0; i < 2000 && !counts(store).refuses; i++) pause_for(0.001);
    assert_true(counts(store).refuses && counts(store).up);
    grant(&s, all);
    put_and_wait(store, &third, 3, 1000);
    assert_false(counts(store).refuses);
    assert_int_equal(look(store, &third, 3, 1000), 1);
    mg_store_close(store);
    kill_server(&s);
}

/* All shards on a server in cluster mode: keys of one script are in one slot. */
static void cluster(void **state) {
    (void)state;
    char nodes[64];
    snprintf(nodes, sizeof nodes, "nodes-%d.conf", (int)getpid());
    struct server s = {.more = {"--cluster-enabled", "yes", "--cluster-config-file", nodes}};
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 100, 64 * MB);
    assert_false(counts(store).up); /* CLUSTERDOWN: no slots yet */
    ask(&s, "CLUSTER ADDSLOTSRANGE 0 16383");
    assert_true(wait_up(store, true, 10));
    for (unsigned i = 0; i < 64; i++) {
        struct mg_store_key key = key_of(i, 1);
        put_and_wait(store, &key, i, 3000);
        assert_int_equal(look(store, &key, i, 3000), 1);
    }
    assert_int_equal(counts(store).put[0].kept, 64);
    mg_store_close(store);
    kill_server(&s);
    char path[96];
    snprintf(path, sizeof path, "/tmp/%s", nodes);
    unlink(path);
}

/* A server that takes no more: reads go on, and it is told once. */
static void full(void **state) {
    (void)state;
    struct server s = {.more = {"--maxmemory", "6mb", "--maxmemory-policy", "noeviction"}};
    start(&s);
    struct mg_byte_store *store = open_with(s.url, 100, 1024 * MB);
    struct mg_store_key first = key_of(0, 1);
    put_and_wait(store, &first, 0, 100000);
    for (unsigned i = 1; i < 20; i++) {
        struct mg_store_key key = key_of(i, 1);
        put_and_wait(store, &key, i, MB);
    }
    struct mg_store_counts c = counts(store);
    assert_true(c.refuses && c.up && c.put[0].refused > 5 && c.put[0].failed == 0);
    /* what was put in part goes within a minute, what is whole stays */
    size_t partial = 0;
    for (unsigned i = 0; i < 20; i++) {
        struct mg_store_key key = key_of(i, 1);
        struct mg_redis_names names;
        char words[300];
        mg_redis_names_make(&key, &names);
        snprintf(words, sizeof words, "EXISTS %s", names.entry);
        if (!ask(&s, words)) continue;
        snprintf(words, sizeof words, "HEXISTS %s h", names.entry);
        bool whole = ask(&s, words) == 1;
        snprintf(words, sizeof words, "TTL %s", names.entry);
        assert_true(whole ? ask(&s, words) > 60 : ask(&s, words) <= 60);
        partial += !whole;
    }
    assert_true(partial > 0);
    assert_int_equal(look(store, &first, 0, 100000), 1);
    mg_store_close(store);
    kill_server(&s);
}

static void bad_urls(void **state) {
    (void)state;
    struct mg_redis_store_options o = {.url = "http://x", .seconds = 1, .budget = MB};
    struct mg_byte_store *store;
    struct mg_err err = {0};
    assert_int_equal(mg_redis_store_open(&o, &store, &err), MG_ERR_ARGUMENT);
    assert_string_equal(err.code, "redis_url");
    assert_null(store);
}

/* Started with the argument `time`: what entries of the size of features cost (docs/redis.md). */
static void note_time(void *user, bool put, double seconds) {
    double *best = (double *)user + put;
    if (seconds < *best) *best = seconds;
}

static int measure(void) {
    static const size_t size[] = {1000, 5537792, 1014 * 4 * 2048 * 4};
    struct server s = {0};
    start(&s);
    for (unsigned i = 0; i < 3; i++) {
        double best[2] = {1e9, 1e9};
        struct mg_redis_store_options o = {
            .url = s.url, .seconds = 100, .budget = 4096 * MB, .observe = note_time, .user = best};
        struct mg_byte_store *store;
        if (mg_redis_store_open(&o, &store, NULL) != MG_OK) return 1;
        for (unsigned k = 0; k < 7; k++) {
            struct mg_store_key key = key_of(100 * i + k, 1);
            put_and_wait(store, &key, k, size[i]);
            look(store, &key, k, size[i]);
        }
        printf("%9zu bytes: read in %.2f ms, put in %.2f ms\n", size[i], best[0] * 1e3,
               best[1] * 1e3);
        mg_store_close(store);
    }
    kill_server(&s);
    return 0;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    atexit(kill_all);
    if (argc > 1 && strcmp(argv[1], "time") == 0) return measure();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips), cmocka_unit_test(not_believed), cmocka_unit_test(budget),
        cmocka_unit_test(lives),       cmocka_unit_test(away),         cmocka_unit_test(bounded),
        cmocka_unit_test(rights),      cmocka_unit_test(cluster),      cmocka_unit_test(full),
        cmocka_unit_test(bad_urls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
