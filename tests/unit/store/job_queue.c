/* The queue's C side against a real redis-server, started here on a free port: what goes in comes
 * out as it was, what another hand has written is refused, and a server that is away, or comes back
 * without the script, is no more than an error and a pause. (The script itself, operation by
 * operation: tests/fleet/test_queue_script.py.) */
#include "store/job_queue.h"

#include "base/io.h"
#include "base/sha256.h"

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
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char ann[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                  bob[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
static const char id1[] = "job-11111111111111111111111111111111",
                  id2[] = "job-22222222222222222222222222222222";

static char port[8];
static pid_t server;
static struct mg_queue *q;

static void pause_for(double seconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

static void start_server(void) {
    server = fork();
    if (server == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
               "--appendonly", "no", (char *)NULL);
        _exit(127);
    }
    assert_true(server > 0);
}

static void stop_server(void) {
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}

static void open_queue(void) {
    struct mg_queue_options o = {.name = "unit", .call_seconds = 5, .wait_seconds = 60};
    struct mg_queue_look look;
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%s", port);
    assert_int_equal(mg_redis_url_parse(url, &o.url, NULL), MG_OK);
    assert_int_equal(mg_queue_open(&o, &q, NULL), MG_OK);
    double end = mg_clock() + 10;
    while (mg_queue_look(q, &look, NULL, NULL, NULL) != MG_OK && mg_clock() < end) pause_for(0.02);
    assert_true(mg_queue_is_up(q));
}

static int start(void **state) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    if (bind(fd, (struct sockaddr *)&a, n) || getsockname(fd, (struct sockaddr *)&a, &n)) return 1;
    snprintf(port, sizeof port, "%u", ntohs(a.sin_port));
    close(fd);
    start_server();
    open_queue();
    return 0;
}

static int end(void **state) {
    (void)state;
    mg_queue_close(q);
    stop_server();
    return 0;
}

/* Any command, by a link of our own. */
static void command(const char *format, ...) {
    redisContext *c = redisConnect("127.0.0.1", atoi(port));
    va_list ap;
    assert_non_null(c);
    va_start(ap, format);
    redisReply *r = redisvCommand(c, format, ap);
    va_end(ap);
    assert_non_null(r);
    assert_int_not_equal(r->type, REDIS_REPLY_ERROR);
    freeReplyObject(r);
    redisFree(c);
}

static struct mg_job_order order(const char *id, const struct mg_job_blob *blob,
                                 const struct mg_slice *data) {
    static const char body[] = "{\"zero\":\"\0\r\n$5\r\n\"}";
    return (struct mg_job_order){.id = id,
                                 .tenant = ann,
                                 .priority = "normal",
                                 .stream = true,
                                 .gateway = "g1",
                                 .path = "/v1/chat/completions",
                                 .body = body,
                                 .n_body = sizeof body - 1,
                                 .bytes = 100,
                                 .blob = blob,
                                 .data = data,
                                 .n_blob = blob != NULL};
}

static struct mg_job_taken got;
static char got_id[MG_JOB_ID_BYTES];
static size_t n_got;
static void on_job(void *user, const struct mg_job_taken *job) {
    struct mg_buf *body = user;
    got = *job;
    snprintf(got_id, sizeof got_id, "%s", job->id);
    n_got++;
    if (body) mg_buf_add(body, job->body.data, job->body.n);
}

static unsigned take(const char *worker, struct mg_buf *body, char *place) {
    char unused[MG_JOB_PLACE_BYTES];
    n_got = 0;
    assert_int_equal(
        mg_queue_take(q, worker, 1, NULL, 0, on_job, body, place ? place : unused, NULL), MG_OK);
    return n_got ? got.attempt : 0;
}

struct seen {
    struct mg_buf data;
    char head[64], state[16], place[MG_JOB_PLACE_BYTES];
    size_t n, job;
};
static void on_event(void *user, const struct mg_queue_event *e) {
    struct seen *s = user;
    s->n++;
    s->job = e->job;
    if (e->head) snprintf(s->head, sizeof s->head, "%s", e->head);
    if (e->state) snprintf(s->state, sizeof s->state, "%s", e->state);
    if (e->data.n) assert_int_equal(e->end - e->data.n, s->data.n);
    mg_buf_add(&s->data, e->data.data, e->data.n);
    snprintf(s->place, sizeof s->place, "%s", e->place);
}

static void a_job_goes_in_and_its_answer_comes_out(void **state) {
    static const uint8_t picture[] = "any\0bytes\r\n";
    struct mg_slice data = {picture, sizeof picture};
    struct mg_job_blob blob = {.name = "file-x"};
    uint8_t digest[MG_SHA256_BYTES];
    struct mg_buf body = {0}, bytes = {0};
    struct mg_err err = {0};
    enum mg_submit told;
    enum mg_owner owner;
    double seconds;
    char place[MG_JOB_PLACE_BYTES];
    (void)state;
    mg_sha256(picture, sizeof picture, digest);
    mg_hex(digest, sizeof digest, blob.digest);
    struct mg_job_order o = order(id1, &blob, &data);
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(mg_queue_submit(q, &o, &told, &seconds, &err), MG_OK);
        assert_int_equal(told, MG_SUBMIT_OK);
    }
    o.tenant = bob;
    assert_int_equal(mg_queue_submit(q, &o, &told, &seconds, &err), MG_ERR_ARGUMENT);
    assert_string_equal(err.code, "job_id_taken");
    assert_int_equal(take("w1", &body, place), 1);
    assert_string_equal(got_id, id1);
    assert_int_equal(body.n, o.n_body);
    assert_memory_equal(body.data, o.body, body.n);
    assert_int_equal(got.n_blob, 1);
    assert_string_equal(got.blob[0].name, "file-x");
    assert_int_equal(mg_queue_blob(q, ann, got.blob[0].digest, &bytes, NULL), MG_OK);
    assert_int_equal(bytes.n, sizeof picture);
    assert_memory_equal(bytes.data, picture, bytes.n);
    assert_int_equal(mg_queue_blob(q, bob, got.blob[0].digest, &bytes, NULL), MG_ERR_NOT_FOUND);
    command("SET margay:{q:unit}:blob:%s:%s forged", ann, blob.digest);
    assert_int_equal(mg_queue_blob(q, ann, got.blob[0].digest, &bytes, NULL), MG_ERR_NOT_FOUND);

    struct mg_slice hello = {(const uint8_t *)"hel\0lo", 6};
    assert_int_equal(mg_queue_emit(q, id1, 1, "200\n", 0, hello, NULL, NULL, &owner, NULL), MG_OK);
    assert_int_equal(owner, MG_OWNER_OK);
    assert_int_equal(mg_queue_emit(q, id1, 1, "", 6, hello, "done", "", &owner, NULL), MG_OK);
    const char *const ids[] = {id2, id1}, *const after[] = {"0-0", "0-0"};
    struct seen s = {0};
    assert_int_equal(mg_queue_events(q, ids, after, 2, on_event, &s, NULL), MG_OK);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.job, 1);
    assert_string_equal(s.head, "200\n");
    assert_string_equal(s.state, "done");
    assert_memory_equal(s.data.data, "hel\0lohel\0lo", 12);
    struct mg_job_state js;
    assert_int_equal(mg_queue_state(q, id1, ann, "", &js, NULL), MG_OK);
    assert_string_equal(js.state, "done");
    assert_int_equal(js.offset, 12);
    assert_int_equal(mg_queue_state(q, id1, bob, "", &js, NULL), MG_OK);
    assert_string_equal(js.state, "");
    mg_buf_free(&s.data);
    mg_buf_free(&body);
    mg_buf_free(&bytes);
}

static void on_id(void *user, const char *id) {
    snprintf(user, MG_JOB_ID_BYTES, "%s", id);
}

static void on_owner(void *user, const char *id, unsigned attempt, enum mg_owner owner) {
    assert_string_equal(id, id2);
    assert_int_equal(attempt, 1);
    *(enum mg_owner *)user = owner;
}

static void workers_and_gateways_are_woken(void **state) {
    char place[MG_JOB_PLACE_BYTES], inbox[MG_JOB_PLACE_BYTES], id[MG_JOB_ID_BYTES] = "";
    struct mg_job_order o = order(id2, NULL, NULL);
    enum mg_submit told;
    enum mg_owner owner = MG_OWNER_OK;
    double seconds;
    bool found;
    (void)state;
    assert_int_equal(mg_queue_inbox(q, "g1", inbox, NULL), MG_OK);
    assert_int_equal(take("w1", NULL, place), 0);
    double began = mg_clock();
    assert_int_equal(mg_queue_wait_jobs(q, place, 0.2, NULL), MG_OK);
    assert_true(mg_clock() - began > 0.15);
    assert_int_equal(mg_queue_submit(q, &o, &told, &seconds, NULL), MG_OK);
    began = mg_clock();
    assert_int_equal(mg_queue_wait_jobs(q, place, 5, NULL), MG_OK); /* it came before the wait */
    assert_true(mg_clock() - began < 2);
    assert_int_equal(take("w1", NULL, place), 1);
    struct mg_slice x = {(const uint8_t *)"x", 1};
    mg_queue_emit(q, id2, 1, "", 0, x, NULL, NULL, &owner, NULL);
    assert_int_equal(mg_queue_wait_inbox(q, "g1", inbox, 5, on_id, id, NULL), MG_OK);
    assert_string_equal(id, id2);
    const char *const ids[] = {id2};
    unsigned attempt = 1;
    assert_int_equal(mg_queue_cancel(q, id2, ann, &found, NULL), MG_OK);
    assert_true(found);
    assert_int_equal(mg_queue_beat(q, "w1", 1, "{}", ids, &attempt, 1, on_owner, &owner, NULL),
                     MG_OK);
    assert_int_equal(owner, MG_OWNER_CANCEL);
    assert_int_equal(mg_queue_mine(q, "w1", ids, 1, NULL), MG_OK);
    assert_int_equal(mg_queue_release(q, id2, 1, true, &owner, NULL), MG_OK);
    assert_int_equal(mg_queue_emit(q, id2, 1, "", 1, x, NULL, NULL, &owner, NULL), MG_OK);
    assert_int_equal(owner, MG_OWNER_LOST);
    assert_int_equal(mg_queue_bye(q, "w1", NULL), MG_OK);
}

/* Bytes of that many events, of each of three jobs. */
static void on_large(void *user, const struct mg_queue_event *e) {
    size_t *n = user;
    n[e->job] += e->data.n;
}

static void events_that_are_too_large_for_one_reply_come_all_the_same(void **state) {
    static const char *const ids[] = {"job-a", "job-b", "job-c", "job-d"}, *const after[] = {
                                                                               "0-0", "0-0", "0-0",
                                                                               "0-0"};
    size_t each = (size_t)20 << 20, n[4] = {0};
    char *data = malloc(each);
    struct mg_err err = {0};
    (void)state;
    assert_non_null(data);
    memset(data, 'x', each);
    for (int i = 0; i < 4; i++)
        command("XADD margay:{q:unit}:ev:%s %d-0 d %b", ids[i], (int)each, data, each);
    free(data);
    assert_int_equal(mg_queue_events(q, ids, after, 4, on_large, n, &err), MG_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(n[i], each);
        command("DEL margay:{q:unit}:ev:%s", ids[i]);
    }
}

static void a_picture_decides_among_the_next_32_for_half_a_minute(void **state) {
    char id[24][MG_JOB_ID_BYTES], place[MG_JOB_PLACE_BYTES];
    enum mg_submit told;
    enum mg_owner owner;
    double seconds;
    struct mg_job_blob blob = {.name = "file-x"};
    struct mg_slice data = {(const uint8_t *)"p", 1};
    uint8_t digest[MG_SHA256_BYTES];
    const char *const have[] = {blob.digest};
    (void)state;
    mg_sha256("p", 1, digest);
    mg_hex(digest, sizeof digest, blob.digest);
    for (int i = 0; i < 24; i++) {
        bool with = i == 20 || i == 21;
        snprintf(id[i], sizeof id[i], "job-%032d", i);
        struct mg_job_order o = order(id[i], with ? &blob : NULL, with ? &data : NULL);
        assert_int_equal(mg_queue_submit(q, &o, &told, &seconds, NULL), MG_OK);
    }
    const int ago[] = {-20000, -15000}; /* ms */
    const int next[] = {20, 0};         /* after 20 s a picture decides; after 35 the oldest goes */
    for (int i = 0; i < 2; i++) {
        command("HINCRBY margay:{q:unit}:job:%s created %d", id[0], ago[i]);
        assert_int_equal(mg_queue_take(q, "w1", 1, have, 1, on_job, NULL, place, NULL), MG_OK);
        assert_string_equal(got_id, id[next[i]]);
        assert_int_equal(
            mg_queue_emit(q, got_id, 1, "", 0, (struct mg_slice){0}, "done", "", &owner, NULL),
            MG_OK);
    }
    bool found;
    for (int i = 1; i < 24; i++)
        assert_int_equal(mg_queue_cancel(q, id[i], ann, &found, NULL), MG_OK);
}

static void a_full_server_is_said_and_stays_connected(void **state) {
    struct mg_job_order o = order("job-33333333333333333333333333333333", NULL, NULL);
    struct mg_queue_look look;
    enum mg_submit told;
    double seconds;
    struct mg_err err = {0};
    (void)state;
    command("CONFIG SET maxmemory 1");
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(mg_queue_submit(q, &o, &told, &seconds, &err), MG_OK);
        assert_string_equal(err.code, "redis_full");
        assert_true(mg_queue_is_up(q));
    }
    assert_int_equal(mg_queue_look(q, &look, NULL, NULL, NULL), MG_OK);
    command("CONFIG SET maxmemory 0");
}

static void what_other_hands_have_written_is_refused(void **state) {
    struct mg_job_state js;
    unsigned lost;
    struct mg_err err = {0};
    (void)state;
    command("SET margay:{q:unit}:job:job-x text");
    assert_int_not_equal(mg_queue_state(q, "job-x", ann, "", &js, &err), MG_OK);
    assert_string_equal(err.code, "redis_error");
    command("DEL margay:{q:unit}:ev:%s", id2);
    command("XADD margay:{q:unit}:ev:%s 5-0 d longerthanitsplace", id2);
    command("XADD margay:{q:unit}:ev:%s 6-0 nonsense 1", id2);
    const char *const ids[] = {id2}, *const after[] = {"0-0"};
    struct seen s = {0};
    assert_int_equal(mg_queue_events(q, ids, after, 1, on_event, &s, NULL), MG_OK);
    assert_int_equal(s.n, 0);
    command("XADD margay:{q:unit}:jobs * j job-that-never-was");
    assert_int_equal(mg_queue_reap(q, &lost, NULL), MG_OK);
    struct mg_queue_look look;
    assert_int_equal(mg_queue_look(q, &look, NULL, NULL, NULL), MG_OK);
    assert_int_equal(look.running + look.waiting, 0);
    assert_true(mg_queue_is_up(q));
}

static void a_server_that_is_away_is_an_error_at_once_and_comes_back(void **state) {
    struct mg_queue_look look;
    struct mg_err err = {0};
    (void)state;
    stop_server();
    double began = mg_clock();
    for (int i = 0; i < 50; i++)
        assert_int_not_equal(mg_queue_look(q, &look, NULL, NULL, &err), MG_OK);
    assert_true(mg_clock() - began < 2);
    assert_false(mg_queue_is_up(q));
    assert_memory_equal(err.code, "redis_", 6);
    start_server(); /* without the script */
    double limit = mg_clock() + 10;
    while (mg_queue_look(q, &look, NULL, NULL, NULL) != MG_OK && mg_clock() < limit)
        pause_for(0.02);
    assert_true(mg_queue_is_up(q));
}

static void names(void **state) {
    struct mg_queue *none;
    struct mg_queue_options o = {.name = "a b"};
    (void)state;
    assert_int_equal(mg_queue_open(&o, &none, NULL), MG_ERR_ARGUMENT);
    assert_null(none);
    assert_true(mg_queue_name_valid("qwen-2b.int8:0"));
    assert_false(mg_queue_name_valid("") || mg_queue_name_valid("a}b") ||
                 mg_queue_name_valid("a{b"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_in_and_its_answer_comes_out),
        cmocka_unit_test(workers_and_gateways_are_woken),
        cmocka_unit_test(events_that_are_too_large_for_one_reply_come_all_the_same),
        cmocka_unit_test(a_picture_decides_among_the_next_32_for_half_a_minute),
        cmocka_unit_test(a_full_server_is_said_and_stays_connected),
        cmocka_unit_test(what_other_hands_have_written_is_refused),
        cmocka_unit_test(a_server_that_is_away_is_an_error_at_once_and_comes_back),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, start, end);
}
