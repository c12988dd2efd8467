/* engine/run.h - one answer as a machine of small steps, so that whoever runs the model decides
 * what shares a pass: mg_chat_answer runs one answer alone, the scheduler many together.
 *
 *     mg_run_open -> [ mg_run_look ] -> until mg_run_done:
 *                                          mg_run_fill   rows for the next pass
 *                                          (mg_decoder_pass, with the rows of others)
 *                                          mg_run_passed the rows are in keys and values
 *                                          mg_run_wanted how many next tokens are to be chosen
 *                                          mg_run_decide these are they
 *                 -> mg_run_finish or mg_run_fail -> mg_run_close
 *
 * What is already in the conversation's keys and values is compared by identity (token id, or
 * picture and place in it) and only the rest is read. The last prompt token is always computed,
 * since its logits are needed. The engine's thread owns a run; only its chat's cancel flag is
 * touched from outside.
 */
#ifndef MG_ENGINE_RUN_H
#define MG_ENGINE_RUN_H

#include "engine/internal.h"
#include "engine/loop.h"
#include "engine/prefixes.h"
#include "engine/stop.h"

struct mg_run {
    /* Set by who opens it. */
    mg_chat *chat;                     /* borrowed */
    const struct mg_answer_options *o; /* borrowed, as the stop strings in it */
    mg_event_fn *event;                /* may be NULL */
    void *user;
    struct mg_sampler *sampler;       /* borrowed, this answer's alone while it runs */
    struct mg_draft *draft;           /* likewise; NULL: no guessing */
    struct mg_prefix_store *prefixes; /* borrowed; NULL: nothing is taken over from others */
    bool all_logits;                  /* every token's logits are wanted: no shortcuts */

    struct mg_answer answer; /* filled as it becomes known */
    struct layout layout;    /* of the prompt */
    struct mg_stop *stop;
    struct mg_loop loop;
    struct mg_detok detok;
    struct mg_buf whole, ready; /* scratch: whole characters, releasable text */
    double start, stage_start;  /* mg_clock */
    enum mg_stage stage;
    size_t stage_done;         /* last reported */
    size_t picture, n_picture; /* vision: which of how many new ones */
    size_t read;               /* prompt tokens in keys and values */
    size_t fed, guessed;       /* of the pass being made: rows, and how many of them are guesses */
    size_t most;               /* tokens the answer may have */
    bool stopped;              /* the caller's event said so */
    bool plain;       /* greedy without penalties: the likeliest token is all that matters */
    bool over;        /* the answer is complete */
    size_t max_draft; /* tokens to guess at most; 0: no drafts */
    int32_t feed[MG_MAX_TOP];  /* the tokens of the pass being made */
    int32_t ahead[MG_MAX_TOP]; /* tokens that are decided, but not said yet */
    size_t n_ahead, next_ahead;
};

/* Lays the prompt out and finds what of it is there: answer.prompt_tokens, image_tokens,
 * cached_tokens. MG_ERR_CONTEXT is found here. */
enum mg_status mg_run_open(struct mg_run *r, struct mg_err *err);
/* Picture i has no features yet, and some of its tokens are still to be read. */
bool mg_run_needs_look(const struct mg_run *r, size_t i);
/* Counts those anew, after some got features from elsewhere. */
void mg_run_count_pictures(struct mg_run *r);
/* Encodes the pictures that have no features yet. */
enum mg_status mg_run_look(struct mg_run *r, struct mg_err *err);
/* For the engine's tick while this run alone computes: reports the vision tower's progress; false
 * once it is to stop. */
bool mg_run_tick(struct mg_run *r, size_t done, size_t total);
/* At most `room` rows (at least 1) of the next pass: of the prompt, or the token said last and
 * guesses after it (no more than `guesses`). Gives their number. */
size_t mg_run_fill(struct mg_run *r, struct mg_row *row, size_t room, size_t guesses);
void mg_run_passed(struct mg_run *r);
/* Of the rows just passed, the last so many want their next token; 0 within the prompt. */
size_t mg_run_wanted(const struct mg_run *r);
/* The next tokens, [mg_run_wanted], are said as far as they follow from each other. */
enum mg_status mg_run_decide(struct mg_run *r, const int32_t *id, struct mg_err *err);
/* Instead of all this: the whole answer is in `ready` and the chat's answer_ids, from a cache. Says
 * it and ends the run; mg_run_finish comes next. */
enum mg_status mg_run_repeat(struct mg_run *r, const char *reason, const char *detail,
                             struct mg_err *err);
/* The conversation was stopped from outside, or by the event's answer. */
bool mg_run_is_stopped(const struct mg_run *r);
/* A run that ended by `status`: cancelled after its first token is an answer all the same (MG_OK).
 * On MG_OK the answer is complete, and an assistant turn of the conversation if `keep`. */
enum mg_status mg_run_finish(struct mg_run *r, enum mg_status status, bool keep,
                             struct mg_err *err);
void mg_run_close(struct mg_run *r);

#endif
