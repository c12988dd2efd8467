/* What the tests of the scheduler and of its caches share: questions that are asked through it or
 * alone, what came back, waiting for it, and allocations that fail. */
#ifndef MG_TESTS_JOBS_H
#define MG_TESTS_JOBS_H

#include "engine/schedule.h"
#include "tiny.h"

#include <pthread.h>

enum { MOST_TOKENS = 24 };

/* Where a job has got to; each is also a place to cancel it from within its own event. */
enum place { NOWHERE, QUEUED, DECODING, LOOKING, READING, SAYING, DONE };

struct question {
    /* Set by the test. */
    void (*fill)(mg_chat *chat, size_t i);
    size_t i;
    struct mg_job job;             /* prepare, event, done, user are filled in by ask() */
    enum place cancel_at, hold_at; /* cancel itself; wait there for release() */
    size_t cancel_after;           /* so many events at that place */
    size_t n_event[DONE + 1];
    struct mg_scheduler *scheduler;
    /* What came; read after wait_done. */
    uint64_t id;
    enum place place;
    bool seen[DONE + 1], released;
    int n_done, late; /* ends; events after the end */
    enum mg_status status;
    char code[32], finish[16], detail[16];
    char said[4096], text[4096]; /* from events; from the answer */
    size_t n_said, n_piece, n_text, n_token, prompt, cached, image, drafted, accepted;
    int32_t token[256];
    size_t n_logprob;
    float logprob[256];
    int32_t logprob_id[256];
    enum mg_answer_from from;
    double distance;
    bool image_cached;
    size_t order;                      /* of the ends of all questions: 1 is first */
    size_t position;                   /* in the queue, as told last */
    struct mg_scheduler_counts counts; /* at its end */
};

/* Greedy, MOST_TOKENS tokens, through end tokens and repetitions. */
struct question question(void (*fill)(mg_chat *, size_t), size_t i);
/* The answer alone, by mg_chat_answer; the engine has no scheduler at that time. */
void answer_alone(mg_engine *e, struct question *q);
/* Hands it in. */
enum mg_status try_ask(struct mg_scheduler *s, struct question *q);
void ask(struct mg_scheduler *s, struct question *q);
void wait_done(struct question *q);
void wait_place(struct question *q, enum place at); /* at or past it */
void release(struct question *q);
void ask_and_wait(struct mg_scheduler *s, struct question *q);
/* Exactly one end, no event after it, MG_OK, the same text and tokens. */
void same_answer(const struct question *want, const struct question *got, const char *what);
struct mg_scheduler *open_scheduler(mg_engine *e, struct mg_scheduler_options o);

/* For filling in: a failure is the preparing's. */
void add_text(mg_chat *chat, enum mg_chat_role role, const char *text);
void add_picture(mg_chat *chat, const void *bytes, size_t n);
void add_file(mg_chat *chat, const char *name);
/* Prompts of different length and kind: some with pictures, some with several turns. */
void fill_mixed(mg_chat *chat, size_t i);
void fill_text(mg_chat *chat, size_t i);

/* The n-th allocation from now on (0: the next), of any thread, fails; SIZE_MAX: none does. */
void alloc_fail_at(size_t n);
bool alloc_has_failed(void);
/* Bytes that are allocated now. */
size_t alloc_now(void);

#endif
