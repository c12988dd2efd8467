/* net/fetch.c - see fetch.h.
 *
 * A file's job: up to n_connection transfers, each with one piece of the file at a time. The
 * address where redirects ended is remembered for the further pieces and forgotten at any failure,
 * since such addresses expire. If a server turns out to know no ranges (200 for a piece behind the
 * front) the job begins anew with one piece and one transfer, and each try then begins at the first
 * byte.
 */
#include "net/fetch.h"

#include "net/part.h"
#include "net/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIN_PIECE ((uint64_t)16 << 20) /* smaller ones spend their time on asking */
#define MAX_PIECE ((uint64_t)64 << 20)
#define MAX_SIZE ((uint64_t)1 << 42) /* of a file, 4 TiB */
#define DIGEST_CHUNK ((size_t)1 << 20)
#define NO_PIECE SIZE_MAX

struct mg_fetch {
    struct mg_http http;
};

struct job {
    struct mg_fetch *f;
    const struct mg_fetch_file *file;
    struct mg_fetch_result *result;
    struct mg_part part;
    struct mg_transfer t[MG_FETCH_MAX_CONNECTION]; /* index: the piece, or NO_PIECE */
    size_t n;                                      /* transfers in use */
    char *final_url; /* where redirects ended last, owned; NULL: ask file->url */
    char etag[128];  /* without a digest: what every answer must carry; "" doesn't matter */
    bool whole;      /* the server knows no ranges */
    bool must_whole; /* a sink has just found that out */
    uint64_t told;   /* of progress */
};

enum mg_status mg_fetch_open(const struct mg_fetch_options *options, struct mg_fetch **out,
                             struct mg_err *err) {
    *out = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return mg_fail(err, MG_ERR_IO, "network", "the HTTP client can't be set up");
    struct mg_fetch *f = calloc(1, sizeof *f);
    enum mg_status st =
        f ? mg_http_open(&f->http, options, err) : mg_fail_memory(err, "HTTP client");
    if (st) {
        if (f) mg_http_close(&f->http);
        free(f);
        curl_global_cleanup();
        return st;
    }
    *out = f;
    return MG_OK;
}

void mg_fetch_close(struct mg_fetch *f) {
    if (!f) return;
    mg_http_close(&f->http);
    free(f);
    curl_global_cleanup();
}

/* Runs one transfer to its end. */
static enum mg_status run_one(struct mg_fetch *f, struct mg_transfer *t, struct mg_err *err) {
    enum mg_status st = MG_OK;
    mg_transfer_begin(t);
    while (!st && (t->state == MG_TRANSFER_RUNNING || t->state == MG_TRANSFER_WAITING))
        st = mg_http_step(&f->http, t, 1, err);
    if (!st && t->state == MG_TRANSFER_FAILED) {
        *err = t->err;
        st = t->err.status;
    }
    return st;
}

/* --- into memory --- */

struct memory {
    const char *url;
    struct mg_buf *out;
    size_t max;
};

static enum mg_status memory_prepare(struct mg_transfer *t, struct mg_err *err) {
    struct memory *m = t->owner;
    m->out->n = 0;
    return mg_transfer_url(t, m->url) ? MG_OK : mg_fail_memory(err, "URL");
}

static bool memory_sink(struct mg_transfer *t, const uint8_t *data, size_t n) {
    struct memory *m = t->owner;
    if (n > m->max - m->out->n)
        mg_fail(&t->fault, MG_ERR_LIMIT, "reply_too_large", "%s: more than %zu bytes, the limit",
                t->name, m->max);
    else if (!mg_buf_add(m->out, data, n))
        mg_fail_memory(&t->fault, t->name);
    return !t->fault.status;
}

static bool memory_ended(struct mg_transfer *t) {
    if (t->status != 206) return true;
    snprintf(t->wrong, sizeof t->wrong, "a part of the answer, and the whole was asked for");
    return false;
}

enum mg_status mg_fetch_bytes(struct mg_fetch *f, const char *url, const char *name, size_t max,
                              struct mg_buf *out, struct mg_err *err) {
    struct memory m = {.url = url, .out = out, .max = max};
    struct mg_err why = {0};
    if (out->n) return mg_fail(err, MG_ERR_ARGUMENT, "", "%s: the buffer is in use", name);
    struct mg_transfer t = {.name = name,
                            .owner = &m,
                            .prepare = memory_prepare,
                            .sink = memory_sink,
                            .ended = memory_ended};
    enum mg_status st = mg_transfer_init(&t, &f->http, &why);
    if (!st) st = run_one(f, &t, &why);
    mg_transfer_free(&t);
    return st ? mg_fail(err, st, why.code, "%s", why.text) : MG_OK;
}

/* --- the size, where the listing doesn't tell --- */

static enum mg_status probe_prepare(struct mg_transfer *t, struct mg_err *err) {
    struct job *job = t->owner;
    t->ranged = true;
    t->from = 0;
    t->to = 1;
    return mg_transfer_url(t, job->file->url) ? MG_OK : mg_fail_memory(err, "URL");
}

static bool probe_sink(struct mg_transfer *t, const uint8_t *data, size_t n) {
    t->stop = true; /* the head has told everything */
    return false;
}

static bool probe_ended(struct mg_transfer *t) {
    t->stop = true; /* of an empty file */
    t->length = 0;
    return true;
}

/* Size and ETag of the file as the server tells them. */
static enum mg_status probe(struct job *job, uint64_t *size, struct mg_err *err) {
    struct mg_transfer t = {.name = job->file->name,
                            .owner = job,
                            .prepare = probe_prepare,
                            .sink = probe_sink,
                            .ended = probe_ended};
    struct mg_err why = {0};
    enum mg_status st = mg_transfer_init(&t, &job->f->http, &why);
    if (!st) st = run_one(job->f, &t, &why);
    if (st && !strcmp(why.code, "http_416") && t.has_range && t.range_total == 0) {
        *size = 0; /* an empty file has no first byte */
        st = MG_OK;
    } else if (!st) {
        *size = t.status == 206 && t.has_range ? t.range_total
                : t.status == 200              ? t.length
                                               : UINT64_MAX;
        memcpy(job->etag, t.etag, sizeof job->etag);
        if (*size == UINT64_MAX)
            st = mg_fail(&why, MG_ERR_FORMAT, "size", "%s: the server doesn't tell its size",
                         t.name);
    }
    mg_transfer_free(&t);
    return st ? mg_fail(err, st, why.code, "%s", why.text) : MG_OK;
}

/* --- a file in pieces --- */

static enum mg_status piece_prepare(struct mg_transfer *t, struct mg_err *err) {
    struct job *job = t->owner;
    struct mg_part *p = &job->part;
    if (job->whole && p->got[t->index] > 0) {
        enum mg_status st = mg_part_restart(p, p->piece, err);
        if (st) return st;
    }
    t->from = mg_part_begin(p, t->index) + p->got[t->index];
    t->to = mg_part_end(p, t->index);
    t->ranged = !job->whole && (t->from > 0 || t->to < p->size);
    if (t->n_failed) {
        free(job->final_url);
        job->final_url = NULL;
    }
    t->shortcut = job->final_url != NULL;
    return mg_transfer_url(t, t->shortcut ? job->final_url : job->file->url)
               ? MG_OK
               : mg_fail_memory(err, "URL");
}

/* Is this the answer that was asked for? Called before its first byte is used. */
static bool check_answer(struct mg_transfer *t) {
    struct job *job = t->owner;
    const unsigned long long size = job->part.size;
    if (*job->etag && strcmp(job->etag, t->etag)) {
        snprintf(t->wrong, sizeof t->wrong, "the file has changed on the server");
    } else if (t->status == 206) {
        if (!t->ranged || !t->has_range || t->range_from != t->from || t->range_to <= t->from ||
            t->range_to > t->to)
            snprintf(t->wrong, sizeof t->wrong,
                     "the server sends another range than was asked for");
        else if (t->range_total != UINT64_MAX && t->range_total != size)
            snprintf(t->wrong, sizeof t->wrong, "the server has %llu bytes, not %llu",
                     (unsigned long long)t->range_total, size);
    } else if (t->length != UINT64_MAX && t->length != size) {
        snprintf(t->wrong, sizeof t->wrong, "the server has %llu bytes, not %llu",
                 (unsigned long long)t->length, size);
    } else if (t->ranged) {
        job->must_whole = true;
        t->stop = true;
        return false;
    }
    if (*t->wrong) return false;
    if (t->hop > 0 && !job->final_url) job->final_url = strdup(t->url); /* or not: no harm */
    return true;
}

static bool piece_sink(struct mg_transfer *t, const uint8_t *data, size_t n) {
    struct job *job = t->owner;
    if (job->must_whole) { /* another one has found out; this one's bytes have no place any more */
        t->stop = true;
        return false;
    }
    bool first = t->n_body == n;
    if (first && !check_answer(t)) return false;
    uint64_t at = mg_part_begin(&job->part, t->index) + job->part.got[t->index];
    if (n > t->to - at) {
        snprintf(t->wrong, sizeof t->wrong, "the server sends more than was asked for");
        return false;
    }
    job->result->received += n;
    return !mg_part_write(&job->part, t->index, data, n, &t->fault);
}

static bool piece_ended(struct mg_transfer *t) {
    struct job *job = t->owner;
    if (t->n_body == 0 && !check_answer(t)) return false;
    const struct mg_part *p = &job->part;
    return mg_part_begin(p, t->index) + p->got[t->index] == t->to;
}

/* The next piece that isn't whole and that no transfer has. */
static size_t next_piece(const struct job *job) {
    const struct mg_part *p = &job->part;
    for (size_t i = 0; i < p->n_piece; i++) {
        bool taken = p->got[i] == mg_part_end(p, i) - mg_part_begin(p, i);
        for (size_t k = 0; k < job->n && !taken; k++) taken = job->t[k].index == i;
        if (!taken) return i;
    }
    return NO_PIECE;
}

static void give_up_transfers(struct job *job) {
    for (size_t k = 0; k < job->n; k++) {
        mg_transfer_cancel(&job->t[k]);
        job->t[k].index = NO_PIECE;
    }
}

/* One piece, one transfer, no ranges from here on. */
static enum mg_status go_whole(struct job *job, struct mg_err *err) {
    give_up_transfers(job);
    job->must_whole = false;
    job->whole = true;
    return mg_part_restart(&job->part, job->part.size, err);
}

/* Starts transfers that have nothing to do, collects ended ones. *busy: something runs. */
static enum mg_status assign(struct job *job, bool *busy, struct mg_err *err) {
    *busy = false;
    for (size_t k = 0; k < job->n; k++) {
        struct mg_transfer *t = &job->t[k];
        if (t->state == MG_TRANSFER_FAILED)
            return mg_fail(err, t->err.status, t->err.code, "%s", t->err.text);
        if (t->state == MG_TRANSFER_DONE) {
            t->index = NO_PIECE;
            t->state = MG_TRANSFER_IDLE;
        }
        if (t->state == MG_TRANSFER_IDLE && (!job->whole || k == 0)) {
            t->index = next_piece(job);
            if (t->index != NO_PIECE) mg_transfer_begin(t);
        }
        *busy = *busy || t->state != MG_TRANSFER_IDLE;
    }
    return MG_OK;
}

static void tell(struct job *job) {
    const struct mg_fetch_options *o = &job->f->http.o;
    uint64_t done = mg_part_done(&job->part);
    if (o->progress && done != job->told) o->progress(o->user, done, job->part.size);
    job->told = done;
}

/* Until every piece is whole. */
static enum mg_status fetch_pieces(struct job *job, struct mg_err *err) {
    enum mg_status st = MG_OK;
    bool busy = true;
    while (!st) {
        st = assign(job, &busy, err);
        if (st || !busy) break;
        st = mg_http_step(&job->f->http, job->t, job->n, err);
        if (!st && job->must_whole) st = go_whole(job, err);
        tell(job);
    }
    give_up_transfers(job);
    return st;
}

/* --- digests --- */

/* Hashes an open file; *same: as file->digest says. */
static enum mg_status check_digest(struct mg_fetch *f, const struct mg_fetch_file *file, int fd,
                                   uint64_t size, bool *same, struct mg_err *err) {
    const struct mg_fetch_options *o = &f->http.o;
    struct mg_sha256 sha256 = {0};
    struct mg_sha1 sha1 = {0};
    uint8_t *chunk = mg_alloc(DIGEST_CHUNK, 1), digest[MG_SHA256_BYTES] = {0};
    enum mg_status st = chunk ? MG_OK : mg_fail_memory(err, "digest");
    bool git = file->check == MG_FETCH_GIT_SHA1;
    if (git)
        mg_sha1_begin_blob(&sha1, size);
    else
        mg_sha256_begin(&sha256);
    uint64_t at = 0;
    while (!st && at < size) {
        if (o->stopped && o->stopped(o->user)) {
            st = mg_fail(err, MG_ERR_CANCELLED, "", "interrupted");
            break;
        }
        size_t want = size - at < DIGEST_CHUNK ? (size_t)(size - at) : DIGEST_CHUNK;
        ssize_t n = pread(fd, chunk, want, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = mg_fail_errno(err, "read", file->path, errno);
        if (n <= 0) break; /* shorter than it was: the digest will say so */
        if (git)
            mg_sha1_update(&sha1, chunk, (size_t)n);
        else
            mg_sha256_update(&sha256, chunk, (size_t)n);
        at += (uint64_t)n;
        if (o->checking) o->checking(o->user, at, size);
    }
    size_t n_digest = git ? MG_SHA1_BYTES : MG_SHA256_BYTES;
    bool ok = git ? mg_sha1_finish(&sha1, digest) : mg_sha256_finish(&sha256, digest);
    if (!st && !ok) st = mg_fail_memory(err, "digest");
    *same = !st && at == size && !memcmp(digest, file->digest, n_digest);
    free(chunk);
    return st;
}

enum mg_status mg_fetch_have(struct mg_fetch *f, const struct mg_fetch_file *file, bool *have,
                             struct mg_err *err) {
    *have = false;
    /* Without O_NONBLOCK a FIFO of that name would be waited for. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return MG_OK;
    if (fd < 0) return mg_fail_errno(err, "open", file->path, errno);
    struct stat s;
    enum mg_status st = MG_OK;
    if (fstat(fd, &s))
        st = mg_fail_errno(err, "stat", file->path, errno);
    else if (!S_ISREG(s.st_mode))
        st = mg_fail(err, MG_ERR_IO, "", "%s is not a regular file", file->path);
    else if ((uint64_t)s.st_size == file->size)
        *have = true;
    if (*have && file->check != MG_FETCH_NO_CHECK)
        st = check_digest(f, file, fd, file->size, have, err);
    close(fd);
    return st;
}

/* --- a file from the first byte to its name --- */

/* What tells this content from any other: its digest, or else the server's word for it. */
static enum mg_status identify(struct job *job, uint64_t *size, char out[MG_PART_IDENTITY],
                               struct mg_err *err) {
    const struct mg_fetch_file *file = job->file;
    *size = file->size;
    if (file->check == MG_FETCH_NO_CHECK || *size == UINT64_MAX) {
        enum mg_status st = probe(job, size, err);
        if (st) return st;
        if (file->size != UINT64_MAX && file->size != *size)
            return mg_fail(err, MG_ERR_FORMAT, "size", "%s: the server has %llu bytes, not %llu",
                           file->name, (unsigned long long)*size, (unsigned long long)file->size);
    }
    uint8_t digest[MG_SHA256_BYTES];
    char hex[MG_SHA256_HEX];
    if (file->check == MG_FETCH_NO_CHECK) {
        if (!mg_sha256(job->etag, strlen(job->etag), digest)) return mg_fail_memory(err, "digest");
        mg_hex(digest, sizeof digest, hex);
        /* Without even an ETag nothing says that the rest would be of the same file. */
        if (*job->etag)
            snprintf(out, MG_PART_IDENTITY, "etag:%s", hex);
        else
            snprintf(out, MG_PART_IDENTITY, "unknown:%ld", (long)getpid());
    } else {
        job->etag[0] = 0; /* the digest decides; CDN nodes may differ in their ETags */
        bool git = file->check == MG_FETCH_GIT_SHA1;
        mg_hex(file->digest, git ? MG_SHA1_BYTES : MG_SHA256_BYTES, hex);
        snprintf(out, MG_PART_IDENTITY, "%s:%s", git ? "git" : "sha256", hex);
    }
    return MG_OK;
}

static uint64_t piece_size(uint64_t size, size_t n_connection) {
    uint64_t piece = size / (4 * n_connection) >> 20 << 20;
    return piece < MIN_PIECE ? MIN_PIECE : piece > MAX_PIECE ? MAX_PIECE : piece;
}

/* Fetches and checks; a wrong digest once more. */
static enum mg_status fetch_checked(struct job *job, struct mg_err *err) {
    const struct mg_fetch_options *o = &job->f->http.o;
    const struct mg_fetch_file *file = job->file;
    for (int round = 0;; round++) {
        bool same = true;
        enum mg_status st = fetch_pieces(job, err);
        if (!st && file->check != MG_FETCH_NO_CHECK)
            st = check_digest(job->f, file, job->part.fd, job->part.size, &same, err);
        if (st || same) return st;
        if (round == 1) {
            mg_part_discard(&job->part);
            return mg_fail(err, MG_ERR_FORMAT, "checksum",
                           "%s: what the server sends has the wrong checksum, twice", file->name);
        }
        if (o->note) {
            char text[320];
            snprintf(text, sizeof text, "%s: the checksum is wrong; fetching it once more",
                     file->name);
            o->note(o->user, text);
        }
        free(job->final_url);
        job->final_url = NULL;
        st = mg_part_restart(&job->part, job->part.piece, err);
        if (st) return st;
    }
}

enum mg_status mg_fetch_file(struct mg_fetch *f, const struct mg_fetch_file *file,
                             struct mg_fetch_result *out, struct mg_err *err) {
    *out = (struct mg_fetch_result){0};
    struct job *job = calloc(1, sizeof *job);
    if (!job) return mg_fail_memory(err, "download");
    *job = (struct job){.f = f, .file = file, .result = out, .told = UINT64_MAX};
    job->part.fd = job->part.state_fd = -1;
    char identity[MG_PART_IDENTITY];
    enum mg_status st = identify(job, &out->size, identity, err);
    if (!st && out->size > MAX_SIZE)
        st = mg_fail(err, MG_ERR_LIMIT, "size", "%s: %llu bytes, the limit is %llu", file->name,
                     (unsigned long long)out->size, (unsigned long long)MAX_SIZE);
    if (!st)
        st = mg_part_open(&job->part, file->path, out->size,
                          piece_size(out->size, f->http.o.n_connection), identity, err);
    if (!st) {
        out->resumed = mg_part_done(&job->part);
        job->n = mg_min_size(f->http.o.n_connection, mg_max_size(1, job->part.n_piece));
        tell(job);
    }
    for (size_t k = 0; k < job->n && !st; k++) {
        job->t[k] = (struct mg_transfer){.name = file->name,
                                         .owner = job,
                                         .prepare = piece_prepare,
                                         .sink = piece_sink,
                                         .ended = piece_ended,
                                         .index = NO_PIECE};
        st = mg_transfer_init(&job->t[k], &f->http, err);
    }
    if (!st) st = fetch_checked(job, err);
    if (!st) st = mg_part_finish(&job->part, err);
    for (size_t k = 0; k < job->n; k++) mg_transfer_free(&job->t[k]);
    mg_part_close(&job->part);
    free(job->final_url);
    free(job);
    return st;
}
