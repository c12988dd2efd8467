/* api/request.h - what the requests of all dialects for an answer have in common: the model's name,
 * how to sample, when to stop, how to reply.
 *
 * Every number says whether it was given, so that the model's own settings or the server's options
 * can stand in for it (mg_request_options). `null` is the same as not given. Fields that are not
 * known are ignored, never refused; a known field with a wrong type or out of its range is
 * MG_ERR_ARGUMENT ("invalid_value") with its name in mg_fault.param. What would change the answer
 * and can't be done yet (tools, JSON schemas) is refused too ("unsupported_value"): an answer that
 * silently isn't what was asked for is worse.
 *
 * Ranges are those of the sampler (engine/sampler.h) and not OpenAI's narrower ones;
 * mg_request_field lists them, docs/openapi.json is tested against it.
 */
#ifndef MG_API_REQUEST_H
#define MG_API_REQUEST_H

#include "api/fault.h"
#include "margay/margay.h"

#define MG_REQUEST_MAX_STOP 16         /* stop strings */
#define MG_REQUEST_MAX_STOP_BYTES 1024 /* of one */
#define MG_REQUEST_MAX_BIAS 4096
#define MG_REQUEST_MAX_N 16 /* answers to one request */
#define MG_REQUEST_MAX_TOP_LOGPROBS 20
#define MG_REQUEST_MAX_MODEL 256 /* bytes of a model's name */
#define MG_REQUEST_MAX_WARNINGS 16

struct mg_set_int {
    bool set;
    int64_t value;
};
struct mg_set_real {
    bool set;
    double value;
};
struct mg_set_bool {
    bool set, value;
};

/* Added to a token's logit; -INFINITY forbids it (`false` in llama-server's form). */
struct mg_request_bias {
    int32_t id; /* >= 0; whether the vocabulary has it is the engine's to say */
    float value;
};

struct mg_request {
    const char *model;            /* as asked for, NULL when not given */
    struct mg_set_int max_tokens; /* >= 1; not set for -1 and -2 (as many as fit) */
    bool max_tokens_all;          /* -1 or -2 was asked for */
    struct mg_set_real temperature, top_p, min_p;
    struct mg_set_int top_k; /* 0: off (-1 is read as 0) */
    struct mg_set_real repetition_penalty, presence_penalty, frequency_penalty;
    struct mg_set_int seed;  /* not set for -1: a random one */
    const char *const *stop; /* [n_stop]; empty strings are left out */
    size_t n_stop;
    const struct mg_request_bias *bias; /* [n_bias] */
    size_t n_bias;
    size_t n;            /* answers wanted, 1.. */
    bool logprobs;       /* wanted, with top_logprobs others for each token */
    size_t top_logprobs; /* 0..20 */
    bool stream, include_usage;
    bool ignore_eos, return_progress, timings_per_token;
    struct mg_set_bool cache_prompt, answer_cache, similar_cache;
    double similar_least; /* least likeness, 0.9..1, when similar_cache gave a number; else 0 */
    bool fast;            /* preset "fast": greedy and 128 tokens where not given otherwise, applied
                             already; pictures at low detail */
    const char *const *warning; /* [n_warning] sentences about what was not taken as it came */
    size_t n_warning;
};

/* Lays what was given over `o` (the model's or the server's defaults). `stop` is a view into the
 * request. max_tokens_all leaves o->max_tokens to the caller. */
void mg_request_options(const struct mg_request *r, struct mg_answer_options *o);

/* One numeric field and its range, for documentation and tests. */
struct mg_request_field {
    const char *name;
    bool whole;
    double min, max; /* both allowed */
};
/* The i-th, false after the last. */
bool mg_request_field(size_t i, struct mg_request_field *out);

#endif
