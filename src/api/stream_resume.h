/* api/stream_resume.h - goes on with an event stream where an earlier attempt at the same answer
 * has broken off.
 *
 * A client has read some events; the worker that made them has died, and another one answers the
 * question from the beginning. What the client has is told first (learn); of the new stream (feed)
 * then only what it lacks comes out. Compared is the text of each choice, not the bytes: another
 * worker may cut it differently (drafts, company in a batch) and has other times. Where a piece is
 * partly new, its new end goes out; where the text differs, nothing does: a client must not get
 * half of one answer and half of another.
 *
 *     mg_resume_learn(&r, "data: {...\"content\":\"The cat\"...}\n\n", n)
 *     mg_resume_feed(&r, "data: {...\"content\":\"The \"...}\n\n", n, &out)         nothing
 *     mg_resume_feed(&r, "data: {...\"content\":\"cat sat\"...}\n\n", n, &out)      " sat"
 *
 * Without anything learnt whole events pass as they are. Pure; one thread at a time.
 */
#ifndef MG_API_STREAM_RESUME_H
#define MG_API_STREAM_RESUME_H

#include "api/fault.h"

enum { MG_RESUME_CHOICES = 128 };

struct mg_resume_choice {
    struct mg_buf text; /* that the client has */
    size_t at;          /* bytes of it that the new stream has repeated */
    size_t n_token;     /* log-probabilities that the client has */
    size_t at_token;
    bool finished; /* the client knows why it ended */
    bool sent;     /* something of it was sent; its role need not be told again */
};

/* Zero it before use. */
struct mg_resume {
    struct mg_resume_choice *choice; /* [n_choice] owned */
    size_t n_choice;
    bool learnt;        /* there is something to compare with */
    bool usage;         /* the client has it */
    struct mg_buf part; /* of an event that is not whole yet */
};

/* Whole events and the beginning of one; MG_ERR_FORMAT for what no server of ours has written. */
enum mg_status mg_resume_learn(struct mg_resume *r, const void *data, size_t n, struct mg_err *err);
/* Adds to `out` what the client lacks, in whole events. MG_ERR_NUMERIC, code answer_changed: this
 * is another answer. */
enum mg_status mg_resume_feed(struct mg_resume *r, const void *data, size_t n, struct mg_buf *out,
                              struct mg_err *err);
/* Nothing of an event is left over. */
bool mg_resume_is_whole(const struct mg_resume *r);
void mg_resume_free(struct mg_resume *r);

#endif
