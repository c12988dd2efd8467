/* Fuzz target: the body of a request on its way into the queue. Promises: an error is a 400 in our
 * own words; no picture's name comes twice, each digest is that of its bytes; what is left of the
 * body is JSON that says the same when it is read again: of pictures only their names. */
#include "api/job_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST_PICTURE = 4096 };

static void need(bool promise) {
    if (!promise) abort();
}

static struct mg_job_request *parse(const void *body, size_t n) {
    struct mg_job_request *r;
    struct mg_fault f = {0};
    enum mg_status st = mg_job_request_parse(body, n, MOST_PICTURE, &r, &f);
    need((st == MG_OK) == (r != NULL) && st == f.err.status);
    if (st) {
        struct mg_fault_kind kind;
        mg_fault_kind(&f.err, &kind);
        need(f.err.text[0] && kind.http == 400);
        for (const char *c = f.err.text; *c; c++) need(*c >= 0x20 && *c < 0x7F);
    }
    return r;
}

static void check(const struct mg_job_request *r) {
    need(r->n_picture <= MG_JOB_MAX_PICTURES);
    for (size_t i = 0; i < r->n_picture; i++) {
        const struct mg_job_picture *p = &r->picture[i];
        need(p->name[0] && memchr(p->name, 0, sizeof p->name));
        for (size_t k = 0; k < i; k++) need(strcmp(p->name, r->picture[k].name) != 0);
        if (!p->bytes) continue;
        uint8_t digest[MG_SHA256_BYTES];
        char hex[MG_SHA256_HEX], name[48];
        need(p->n <= MOST_PICTURE && mg_sha256(p->bytes, p->n, digest));
        mg_hex(digest, sizeof digest, hex);
        snprintf(name, sizeof name, "file-%.32s", hex);
        need(!strcmp(p->digest, hex) && !strcmp(p->name, name));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *body = malloc(n + !n); /* a block of its own */
    need(body != NULL);
    if (n) memcpy(body, data, n);
    struct mg_job_request *r = parse(body, n);
    free(body);
    if (!r) return 0;
    check(r);
    struct mg_job_request *again = parse(r->body.data, r->body.n);
    need(again && again->stream == r->stream && again->n_picture == r->n_picture);
    bool over = false; /* more pictures than are taken out of one request */
    for (size_t i = 0; i < r->n_picture; i++) {
        bool found = false;
        for (size_t k = 0; k < r->n_picture && !found; k++)
            found = !strcmp(again->picture[k].name, r->picture[i].name);
        need(found);
        over = over || again->picture[i].bytes;
    }
    need(over ? n > MG_JOB_MAX_PICTURES * (size_t)100
              : again->body.n == r->body.n && !memcmp(again->body.data, r->body.data, r->body.n));
    mg_job_request_free(again);
    mg_job_request_free(r);
    return 0;
}
