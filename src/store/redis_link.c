/* store/redis_link.c - see redis_link.h.
 *
 * The C library's name lookup can't be given a deadline, so names (not addresses) are looked up by
 * a thread of their own that is left behind when it takes too long; the block that both share is
 * freed by whoever lets go of it last.
 */
#include "store/redis_link.h"

#include "base/io.h"
#include "base/mem.h"

#include <hiredis/hiredis.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct mg_redis_link {
    int fd;
    bool broken;         /* replies no longer belong to commands */
    SSL *ssl;            /* NULL without TLS; owned */
    redisReader *reader; /* owned */
    double pace;         /* bytes a second that a reply is given time for; 0: none */
    char name[320];      /* for messages, without the password */
};

/* --- looking a name up */
struct lookup {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    char host[256], port[6];
    bool done, left;      /* result is there; nobody waits any more */
    int code;             /* of getaddrinfo */
    struct addrinfo *all; /* the waiting side's once done */
};

static void lookup_free(struct lookup *l) {
    if (l->all) freeaddrinfo(l->all);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

static void *lookup_run(void *arg) {
    struct lookup *l = arg;
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *all = NULL;
    int code = getaddrinfo(l->host, l->port, &hint, &all);
    pthread_mutex_lock(&l->mutex);
    l->code = code;
    l->all = code ? NULL : all;
    l->done = true;
    bool left = l->left;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    if (left) lookup_free(l);
    return NULL;
}

static bool lookup_start(struct lookup *l) {
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread inherits: it takes no signals */
    bool ok = pthread_create(&thread, &attr, lookup_run, l) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return ok;
}

/* Waits for the answer or the deadline; *l is gone afterwards. */
static enum mg_status lookup_wait(struct lookup *l, double deadline, struct addrinfo **out,
                                  struct mg_err *err) {
    struct timespec until = {.tv_sec = (time_t)deadline};
    until.tv_nsec = (long)((deadline - (double)until.tv_sec) * 1e9);
    pthread_mutex_lock(&l->mutex);
    while (!l->done && pthread_cond_timedwait(&l->changed, &l->mutex, &until) != ETIMEDOUT)
        continue;
    bool done = l->done;
    int code = l->code;
    *out = l->all;
    l->all = NULL;
    l->left = true;
    pthread_mutex_unlock(&l->mutex);
    if (done) lookup_free(l); /* else the thread frees it */
    if (!done) return mg_fail(err, MG_ERR_IO, "redis_timeout", "the name's lookup takes too long");
    if (code)
        return mg_fail(err, MG_ERR_IO, "redis_host", "the name can't be found: %s",
                       gai_strerror(code));
    return MG_OK;
}

static enum mg_status find_addresses(const struct mg_redis_url *url, double deadline,
                                     struct addrinfo **out, struct mg_err *err) {
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(url->host, url->port, &hint, out) == 0) return MG_OK;
    struct lookup *l = calloc(1, sizeof *l);
    if (!l) return mg_fail_memory(err, "name lookup");
    snprintf(l->host, sizeof l->host, "%s", url->host);
    snprintf(l->port, sizeof l->port, "%s", url->port);
    if (!lookup_start(l)) {
        lookup_free(l);
        return mg_fail_memory(err, "name lookup's thread");
    }
    return lookup_wait(l, deadline, out, err);
}

/* --- bytes */
/* True when fd has one of the events before the deadline. */
static bool wait_fd(int fd, short events, double deadline) {
    for (;;) {
        double left = deadline - mg_clock();
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (n > 0) return true;
        if (n == 0 && left <= 0) return false;
        if (n < 0 && errno != EINTR) return false;
    }
}

static enum mg_status late(struct mg_err *err, const char *what) {
    return mg_fail(err, MG_ERR_IO, "redis_timeout", "%s takes too long", what);
}

static enum mg_status gone(struct mg_err *err, int errnum) {
    return mg_fail(err, MG_ERR_IO, "redis_closed", "it closed the connection%s%s",
                   errnum ? ": " : "", errnum ? strerror(errnum) : "");
}

/* What OpenSSL wants after a call that returned `n`: waits for it; otherwise says why not. */
static enum mg_status wait_ssl(struct mg_redis_link *k, int n, double deadline, const char *what,
                               struct mg_err *err) {
    int e = SSL_get_error(k->ssl, n);
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE)
        return wait_fd(k->fd, e == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline)
                   ? MG_OK
                   : late(err, what);
    long verdict = SSL_get_verify_result(k->ssl);
    if (verdict != X509_V_OK)
        return mg_fail(err, MG_ERR_IO, "redis_tls", "its certificate is not accepted: %s",
                       X509_verify_cert_error_string(verdict));
    if (e == SSL_ERROR_ZERO_RETURN || (e == SSL_ERROR_SYSCALL && !ERR_peek_error()))
        return gone(err, e == SSL_ERROR_SYSCALL ? errno : 0);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return mg_fail(err, MG_ERR_IO, "redis_tls", "TLS failed: %s", reason ? reason : "unknown");
}

/* At least one byte of [data, n) is written or *n_done read; else an error. */
static enum mg_status move(struct mg_redis_link *k, bool write, char *data, size_t n,
                           double deadline, size_t *n_done, struct mg_err *err) {
    static const char *const what[] = {"the reply", "sending"};
    for (;;) {
        enum mg_status st;
        if (k->ssl) {
            ERR_clear_error();
            errno = 0;
            int done = write ? SSL_write_ex(k->ssl, data, n, n_done)
                             : SSL_read_ex(k->ssl, data, n, n_done);
            if (done == 1) return MG_OK;
            st = wait_ssl(k, done, deadline, what[write], err);
        } else {
            ssize_t done = write ? send(k->fd, data, n, MSG_NOSIGNAL) : recv(k->fd, data, n, 0);
            *n_done = done > 0 ? (size_t)done : 0;
            if (done > 0) return MG_OK;
            if (done == 0 && !write) return gone(err, 0);
            if (done < 0 && errno != EAGAIN && errno != EINTR) return gone(err, errno);
            st =
                wait_fd(k->fd, write ? POLLOUT : POLLIN, deadline) ? MG_OK : late(err, what[write]);
        }
        if (st) return st;
    }
}

/* --- connecting */
static enum mg_status connect_one(const struct addrinfo *a, double deadline, int *out,
                                  struct mg_err *err) {
    int on = 1, failed = 0;
    socklen_t n = sizeof failed;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return mg_fail_errno(err, "make", "a socket", errno);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    enum mg_status st = MG_OK;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (errno != EINPROGRESS && errno != EINTR)
            failed = errno;
        else if (!wait_fd(fd, POLLOUT, deadline))
            st = late(err, "connecting");
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n) != 0)
            failed = errno;
    }
    if (failed) st = mg_fail(err, MG_ERR_IO, "redis_refused", "%s", strerror(failed));
    if (st)
        close(fd);
    else
        *out = fd;
    return st;
}

/* The addresses in turn, each with an equal part of what is left of the time. */
static enum mg_status connect_any(struct mg_redis_link *k, const struct addrinfo *all,
                                  double deadline, struct mg_err *err) {
    size_t n = 0;
    enum mg_status st = MG_ERR_IO;
    struct mg_err last = {0};
    for (const struct addrinfo *a = all; a; a = a->ai_next) n++;
    for (const struct addrinfo *a = all; a && st; a = a->ai_next, n--) {
        double now = mg_clock();
        mg_err_clear(&last);
        st = connect_one(a, now + (deadline - now) / (double)n, &k->fd, &last);
    }
    if (st) return mg_fail(err, last.status, last.code, "%s", last.text);
    return MG_OK;
}

static int no_passphrase(char *buf, int size, int write, void *user) {
    return -1;
}

static enum mg_status tls_files(SSL_CTX *c, const struct mg_redis_tls *f, struct mg_err *err) {
    const char *ca = f ? f->ca_file : NULL, *cert = f ? f->cert_file : NULL,
               *key = f ? f->key_file : NULL;
    const char *reason = NULL;
    SSL_CTX_set_default_passwd_cb(c, no_passphrase); /* never ask on a terminal */
    if (!(ca ? SSL_CTX_load_verify_locations(c, ca, NULL) : SSL_CTX_set_default_verify_paths(c)))
        reason = "the authorities' file can't be used";
    else if (cert && SSL_CTX_use_certificate_chain_file(c, cert) != 1)
        reason = "the client certificate can't be used";
    else if (cert && SSL_CTX_use_PrivateKey_file(c, key ? key : cert, SSL_FILETYPE_PEM) != 1)
        reason = "the client certificate's key can't be used";
    ERR_clear_error();
    return reason ? mg_fail(err, MG_ERR_ARGUMENT, "redis_tls", "%s", reason) : MG_OK;
}

static enum mg_status shake_hands(struct mg_redis_link *k, const struct mg_redis_url *url,
                                  const struct mg_redis_tls *files, double deadline,
                                  struct mg_err *err) {
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    if (!c) return mg_fail_memory(err, "TLS context");
    enum mg_status st = tls_files(c, files, err);
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    if (!st && (!(k->ssl = SSL_new(c)) || SSL_set_fd(k->ssl, k->fd) != 1))
        st = mg_fail_memory(err, "TLS connection");
    SSL_CTX_free(c); /* the connection holds it */
    if (st) return st;
    SSL_set_mode(k->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    X509_VERIFY_PARAM *p = SSL_get0_param(k->ssl);
    if (!X509_VERIFY_PARAM_set1_ip_asc(p, url->host)) {
        if (!X509_VERIFY_PARAM_set1_host(p, url->host, 0) ||
            !SSL_set_tlsext_host_name(k->ssl, url->host))
            return mg_fail_memory(err, "TLS connection");
    }
    for (;;) {
        ERR_clear_error();
        errno = 0;
        int done = SSL_connect(k->ssl);
        if (done == 1) return MG_OK;
        st = wait_ssl(k, done, deadline, "the TLS handshake", err);
        if (st) return st;
    }
}

/* --- commands */
static enum mg_status error_reply(const char *text, struct mg_err *err) {
    static const struct {
        const char *word, *code;
    } known[] = {{"NOAUTH", "redis_auth"},         {"WRONGPASS", "redis_auth"},
                 {"NOPERM", "redis_auth"},         {"ERR invalid password", "redis_auth"},
                 {"ERR AUTH", "redis_auth"},       {"ERR Client sent AUTH", "redis_auth"},
                 {"LOADING", "redis_loading"},     {"MASTERDOWN", "redis_loading"},
                 {"CLUSTERDOWN", "redis_loading"}, {"BUSY", "redis_loading"},
                 {"MOVED", "redis_moved"},         {"ASK ", "redis_moved"}};
    const char *code = "redis_error";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strncmp(text, known[i].word, strlen(known[i].word))) code = known[i].code;
    return mg_fail(err, MG_ERR_IO, code, "it replied: %.200s", text);
}

static enum mg_status read_reply(struct mg_redis_link *k, double deadline, redisReply **out,
                                 struct mg_err *err) {
    char part[16384];
    void *reply = NULL;
    size_t n = 0, total = 0;
    enum mg_status st = MG_OK;
    while (!st) {
        if (redisReaderGetReply(k->reader, &reply) != REDIS_OK)
            st = mg_fail(err, MG_ERR_FORMAT, "redis_reply", "what it sends is no Redis reply");
        if (st || reply) break;
        if (total > MG_REDIS_MAX_REPLY)
            st = mg_fail(err, MG_ERR_LIMIT, "redis_reply", "its reply has more than %zu bytes",
                         MG_REDIS_MAX_REPLY);
        double more = k->pace > 0 ? (double)total / k->pace : 0;
        if (!st) st = move(k, false, part, sizeof part, deadline + more, &n, err);
        if (!st && redisReaderFeed(k->reader, part, n) != REDIS_OK)
            st = mg_fail_memory(err, "Redis reply");
        total += n;
    }
    k->broken = st != MG_OK;
    *out = reply;
    return st;
}

enum mg_status mg_redis_link_call(struct mg_redis_link *k, double seconds, int n_arg,
                                  const char *const *arg, const size_t *n_byte,
                                  struct redisReply **out, struct mg_err *err) {
    char *text = NULL;
    redisReply *reply = NULL;
    double deadline = mg_clock() + seconds;
    if (out) *out = NULL;
    if (k->broken) return gone(err, 0);
    /* hiredis has the argument as `const char **`; it writes to none. */
    int n = redisFormatCommandArgv(&text, n_arg, (const char **)arg, n_byte);
    if (n < 0) return mg_fail_memory(err, "Redis command");
    enum mg_status st = MG_OK;
    for (size_t at = 0, done; at < (size_t)n && !st; at += done)
        st = move(k, true, text + at, (size_t)n - at, deadline, &done, err);
    redisFreeCommand(text);
    k->broken = st != MG_OK;
    if (!st) st = read_reply(k, deadline, &reply, err);
    if (!st && reply->type == REDIS_REPLY_ERROR) st = error_reply(reply->str, err);
    if (!st && out) {
        *out = reply;
        reply = NULL;
    }
    if (reply) freeReplyObject(reply);
    return st;
}

void mg_redis_link_pace(struct mg_redis_link *k, double bytes_a_second) {
    k->pace = bytes_a_second;
}

static enum mg_status introduce(struct mg_redis_link *k, const struct mg_redis_url *url,
                                double deadline, struct mg_err *err) {
    enum mg_status st = MG_OK;
    if (url->has_password) {
        const char *arg[] = {"AUTH", url->user, url->password};
        const char *old[] = {"AUTH", url->password}; /* also to servers before 6, without users */
        bool user = url->user[0] != '\0';
        struct mg_err said = {0};
        st = mg_redis_link_call(k, deadline - mg_clock(), user ? 3 : 2, user ? arg : old, NULL,
                                NULL, &said);
        /* A server that has no AUTH repeats its arguments in the error. */
        if (st && !strcmp(said.code, "redis_error"))
            return mg_fail(err, MG_ERR_IO, "redis_auth", "it does not understand AUTH");
        if (st) return mg_fail(err, st, said.code, "%s", said.text);
    }
    if (!st && url->database) {
        char number[16];
        snprintf(number, sizeof number, "%d", url->database);
        st = mg_redis_link_call(k, deadline - mg_clock(), 2, (const char *[]){"SELECT", number},
                                NULL, NULL, err);
    }
    return st;
}

enum mg_status mg_redis_link_open(const struct mg_redis_url *url, const struct mg_redis_tls *tls,
                                  double seconds, struct mg_redis_link **out, struct mg_err *err) {
    double deadline = mg_clock() + seconds;
    struct addrinfo *all = NULL;
    struct mg_redis_link *k = calloc(1, sizeof *k);
    *out = NULL;
    if (!k) return mg_fail_memory(err, "Redis connection");
    k->fd = -1;
    mg_redis_url_show(url, k->name, sizeof k->name);
    enum mg_status st = find_addresses(url, deadline, &all, err);
    if (!st) st = connect_any(k, all, deadline, err);
    if (!st && url->tls) st = shake_hands(k, url, tls, deadline, err);
    if (!st && !(k->reader = redisReaderCreate())) st = mg_fail_memory(err, "Redis connection");
    if (!st) st = introduce(k, url, deadline, err);
    if (all) freeaddrinfo(all);
    if (st) {
        mg_err_prefix(err, "Redis at %s", k->name);
        mg_redis_link_close(k);
        return st;
    }
    *out = k;
    return MG_OK;
}

void mg_redis_link_close(struct mg_redis_link *k) {
    if (!k) return;
    if (k->reader) redisReaderFree(k->reader);
    if (k->ssl) SSL_free(k->ssl); /* no goodbye: it might block, and Redis needs none */
    if (k->fd >= 0) close(k->fd);
    free(k);
}
