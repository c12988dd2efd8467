/* api/metrics.c - see metrics.h. A metric's cells lie one after another, the last label fastest; a
 * histogram has a cell per bucket, one for what is over all of them, and its sum. Gauges and sums
 * are doubles in the same 64-bit cells. */
#include "api/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_LABEL 3

enum kind { COUNTER, GAUGE, HISTOGRAM };

struct label {
    const char *name;
    const char *const *value; /* NULL-terminated, the last is what all others count as */
};

struct metric {
    const char *name; /* without margay_ */
    const char *help;
    enum kind kind;
    struct label label[MAX_LABEL];
    const double *bucket; /* upper bounds, ended by 0 */
    bool sparse;          /* series that are 0 are left out: there are many */
};

#define VALUES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define BOUNDS(...) ((const double[]){__VA_ARGS__, 0})

#define ENDPOINTS                                                                                  \
    VALUES("chat_completions", "completions", "responses", "messages", "ollama_chat",              \
           "ollama_generate", "ws", "queue", "other")
#define FINISH VALUES("stop", "length", "repetition", "cancelled", "error", "other")
#define ROUTES                                                                                     \
    VALUES("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{id}",             \
           "/v1/files", "/v1/files/{id}", "/v1/files/{id}/content", "/v1/jobs/{id}",               \
           "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/chat",              \
           "/api/generate", "/api/tags", "/api/show", "/api/ps", "/api/version", "/health",        \
           "/live", "/ready", "/props", "/slots", "/metrics", "/tokenize", "/detokenize",          \
           "/apply-template", "/ws", "/openapi.json", "page", "other")
#define METHODS VALUES("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "other")
#define CODES                                                                                      \
    VALUES("101", "200", "204", "206", "301", "304", "400", "401", "403", "404", "405", "408",     \
           "411", "413", "415", "429", "431", "499", "500", "501", "503", "other")
#define FORMATS VALUES("jpeg", "png", "webp", "gif", "bmp", "heic", "avif", "other")
#define OUTCOMES VALUES("ok", "damaged", "truncated", "unsupported", "too_large", "other")
#define PHASES VALUES("queue", "fetch", "image", "vision", "prefill", "decode", "other")
#define CACHES VALUES("image", "prompt", "answer")
#define KINDS VALUES("image", "answer")
#define TYPES                                                                                      \
    VALUES("invalid_request_error", "exceed_context_size_error", "authentication_error",           \
           "permission_error", "not_found_error", "rate_limit_error", "unavailable_error",         \
           "not_supported_error", "server_error", "other")

/* A CPU's answers take from a second to ten minutes. */
#define SECONDS                                                                                    \
    BOUNDS(0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300,  \
           600)
#define SHORT_SECONDS                                                                              \
    BOUNDS(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#define NETWORK_SECONDS                                                                            \
    BOUNDS(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5)
#define TOKEN_SECONDS                                                                              \
    BOUNDS(0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3,     \
           0.5, 1, 2.5)
#define TOKENS BOUNDS(1, 4, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 16384, 32768)

static const struct metric table[MG_N_METRIC] = {
    [MG_M_REQUESTS] = {"requests_total",
                       "Requests for an answer that have ended.",
                       COUNTER,
                       {{"endpoint", ENDPOINTS}, {"finish_reason", FINISH}}},
    [MG_M_HTTP_REQUESTS] = {"http_requests_total",
                            "HTTP requests answered.",
                            COUNTER,
                            {{"route", ROUTES}, {"method", METHODS}, {"code", CODES}},
                            .sparse = true},
    [MG_M_PROMPT_TOKENS] = {"prompt_tokens_total",
                            "Tokens of prompts.",
                            COUNTER,
                            {{"source", VALUES("computed", "cached")}}},
    [MG_M_IMAGE_TOKENS] = {"image_tokens_total", "Tokens of prompts that stand for pictures.",
                           COUNTER},
    [MG_M_IMAGES] = {"images_total",
                     "Pictures received.",
                     COUNTER,
                     {{"format", FORMATS}, {"outcome", OUTCOMES}}},
    [MG_M_GENERATED_TOKENS] = {"generated_tokens_total", "Tokens of answers.", COUNTER},
    [MG_M_DRAFTED_TOKENS] = {"drafted_tokens_total", "Tokens guessed ahead.", COUNTER},
    [MG_M_ACCEPTED_TOKENS] = {"accepted_tokens_total", "Guessed tokens that were right.", COUNTER},
    [MG_M_IMAGE_CACHE_QUERIES] = {"image_cache_queries_total", "Pictures of questions, each once.",
                                  COUNTER},
    [MG_M_IMAGE_CACHE_HITS] = {"image_cache_hits_total", "Pictures that needed no looking at.",
                               COUNTER},
    [MG_M_PROMPT_CACHE_QUERIES] = {"prompt_cache_queries_tokens_total",
                                   "Prompt tokens looked for in the prefix cache.", COUNTER},
    [MG_M_PROMPT_CACHE_HITS] = {"prompt_cache_hits_tokens_total",
                                "Prompt tokens found in the prefix cache.", COUNTER},
    [MG_M_ANSWER_CACHE_QUERIES] = {"answer_cache_queries_total",
                                   "Requests looked for in the answer cache.", COUNTER},
    [MG_M_ANSWER_CACHE_HITS] = {"answer_cache_hits_total",
                                "Answers given from the answer cache.",
                                COUNTER,
                                {{"kind", VALUES("exact", "near")}}},
    [MG_M_CANCELLED] = {"requests_cancelled_total",
                        "Requests given up by their clients.",
                        COUNTER,
                        {{"phase", PHASES}}},
    [MG_M_ERRORS] = {"request_errors_total",
                     "Requests that ended with an error.",
                     COUNTER,
                     {{"type", TYPES}}},
    [MG_M_SHARED_QUERIES] = {"shared_cache_queries_total",
                             "Pictures and answers looked for in the shared cache.",
                             COUNTER,
                             {{"kind", KINDS}}},
    [MG_M_SHARED_HITS] = {"shared_cache_hits_total",
                          "Pictures and answers found in the shared cache.",
                          COUNTER,
                          {{"kind", KINDS}}},
    [MG_M_SHARED_STORED] = {"shared_cache_stored_total",
                            "Pictures and answers put into the shared cache.",
                            COUNTER,
                            {{"kind", KINDS}}},
    [MG_M_SHARED_DROPPED] = {"shared_cache_dropped_total",
                             "Reads and writes of the shared cache that were not tried: Redis "
                             "away, queue full, too large.",
                             COUNTER,
                             {{"what", VALUES("read", "write")}}},
    [MG_M_SHARED_ERRORS] = {"shared_cache_errors_total",
                            "What went wrong with the shared cache: no answer, too late, an entry "
                            "that is damaged or foreign, a write refused.",
                            COUNTER,
                            {{"reason", VALUES("failed", "late", "damaged", "refused")}}},
    [MG_M_SHARED_BYTES] = {"shared_cache_bytes_total",
                           "Bytes of entries taken from and put into the shared cache.",
                           COUNTER,
                           {{"direction", VALUES("read", "written")}}},
    [MG_M_QUEUE_SUBMITTED] = {"queue_submitted_total", "Jobs that all gateways put in the queue.",
                              COUNTER},
    [MG_M_QUEUE_REFUSED] = {"queue_refused_total", "Jobs refused because the queue was full.",
                            COUNTER},
    [MG_M_QUEUE_TAKEOVERS] = {"queue_takeovers_total", "Leases that ran out: a worker was lost.",
                              COUNTER},
    [MG_M_QUEUE_RETURNED] = {"queue_returned_total", "Jobs that workers gave back.", COUNTER},
    [MG_M_QUEUE_ENDED] = {"queue_ended_total",
                          "Jobs by how they ended; dead: the workers that began it were lost.",
                          COUNTER,
                          {{"state", VALUES("done", "failed", "cancelled", "dead")}}},
    [MG_M_JOBS_TAKEN] = {"jobs_taken_total", "Jobs that this worker took from the queue.", COUNTER},
    [MG_M_JOBS_LOST] = {"jobs_lost_total", "Jobs that others took over from this worker.", COUNTER},
    [MG_M_JOBS_RETURNED] = {"jobs_returned_total", "Jobs that this worker gave back.", COUNTER},
    [MG_M_QUEUE_JOBS] = {"queue_jobs",
                         "Jobs in the queue.",
                         GAUGE,
                         {{"state", VALUES("waiting", "running")}}},
    [MG_M_QUEUE_BYTES] = {"queue_bytes", "Of open jobs with their pictures.", GAUGE},
    [MG_M_QUEUE_SLOTS] = {"queue_slots", "Jobs that all workers can run at a time.", GAUGE},
    [MG_M_QUEUE_WORKERS] = {"queue_workers", "Workers that are there.", GAUGE},
    [MG_M_RUNNING] = {"requests_running", "Requests being computed.", GAUGE},
    [MG_M_WAITING] = {"requests_waiting", "Requests in the queue.", GAUGE},
    [MG_M_SLOTS] = {"slots", "Slots by what they do.", GAUGE, {{"state", VALUES("idle", "busy")}}},
    [MG_M_KV_USAGE] = {"kv_cache_usage_ratio", "Share of the key/value memory in use, 0 to 1.",
                       GAUGE},
    [MG_M_CACHE_BYTES] = {"cache_bytes", "Memory that a cache holds.", GAUGE, {{"cache", CACHES}}},
    [MG_M_CACHE_LIMIT] = {"cache_limit_bytes",
                          "Memory that a cache may hold.",
                          GAUGE,
                          {{"cache", CACHES}}},
    [MG_M_REDIS_UP] = {"redis_up", "Whether Redis answers; 0 also when none is set up.", GAUGE},
    [MG_M_MODEL_LOADED] = {"model_loaded", "Whether the model is ready to answer.", GAUGE},
    [MG_M_CONNECTIONS] = {"http_connections", "Open HTTP connections.", GAUGE},
    [MG_M_TTFT] = {"time_to_first_token_seconds", "From a request's arrival to its first token.",
                   HISTOGRAM, .bucket = SECONDS},
    [MG_M_TIME_PER_TOKEN] = {"time_per_output_token_seconds",
                             "Mean time between the tokens of an answer.", HISTOGRAM,
                             .bucket = TOKEN_SECONDS},
    [MG_M_REQUEST_SECONDS] = {"request_duration_seconds", "From a request's arrival to its end.",
                              HISTOGRAM, .bucket = SECONDS},
    [MG_M_QUEUE_SECONDS] = {"queue_time_seconds", "Time spent in the queue.", HISTOGRAM,
                            .bucket = SECONDS},
    [MG_M_JOB_WAIT] = {"queue_wait_seconds",
                       "From a job's coming into the queue to its being taken by this worker.",
                       HISTOGRAM, .bucket = SECONDS},
    [MG_M_IMAGE_DECODE_SECONDS] = {"image_decode_seconds", "Decoding and resizing a picture.",
                                   HISTOGRAM, .bucket = SHORT_SECONDS},
    [MG_M_VISION_SECONDS] = {"vision_encode_seconds", "A picture's way through the vision tower.",
                             HISTOGRAM, .bucket = SECONDS},
    [MG_M_PREFILL_SECONDS] = {"prefill_seconds", "Reading a prompt.", HISTOGRAM, .bucket = SECONDS},
    [MG_M_DECODE_SECONDS] = {"decode_seconds", "Generating an answer after its first token.",
                             HISTOGRAM, .bucket = SECONDS},
    [MG_M_PROMPT_TOKENS_SIZE] = {"request_prompt_tokens", "Tokens of a request's prompt.",
                                 HISTOGRAM, .bucket = TOKENS},
    [MG_M_GENERATED_TOKENS_SIZE] = {"request_generated_tokens", "Tokens of an answer.", HISTOGRAM,
                                    .bucket = TOKENS},
    [MG_M_IMAGE_TOKENS_SIZE] = {"request_image_tokens", "Image tokens of a request.", HISTOGRAM,
                                .bucket = TOKENS},
    [MG_M_SHARED_READ_SECONDS] = {"shared_cache_read_seconds",
                                  "Asking the shared cache for an entry.", HISTOGRAM,
                                  .bucket = NETWORK_SECONDS},
    [MG_M_SHARED_WRITE_SECONDS] = {"shared_cache_write_seconds",
                                   "Putting an entry into the shared cache.", HISTOGRAM,
                                   .bucket = NETWORK_SECONDS},
};

struct mg_metrics {
    size_t at[MG_N_METRIC + 1];             /* first cell of each metric, and behind the last */
    size_t n_value[MG_N_METRIC][MAX_LABEL]; /* of each label; 1 for those it hasn't */
    _Atomic uint64_t *cell;                 /* [at[MG_N_METRIC]], owned */
};

static size_t count_values(const struct label *label) {
    size_t n = 0;
    while (label->value && label->value[n]) n++;
    return n ? n : 1;
}

static size_t count_buckets(const struct metric *metric) {
    size_t n = 0;
    while (metric->bucket && metric->bucket[n] > 0) n++;
    return n;
}

enum mg_status mg_metrics_open(struct mg_metrics **out, struct mg_err *err) {
    struct mg_metrics *m = *out = calloc(1, sizeof *m);
    if (!m) return mg_fail_memory(err, "metrics");
    for (size_t id = 0; id < MG_N_METRIC; id++) {
        size_t n = 1;
        for (size_t i = 0; i < MAX_LABEL; i++)
            n *= m->n_value[id][i] = count_values(&table[id].label[i]);
        if (table[id].kind == HISTOGRAM) n = count_buckets(&table[id]) + 2;
        m->at[id + 1] = m->at[id] + n;
    }
    m->cell = calloc(m->at[MG_N_METRIC], sizeof *m->cell);
    if (m->cell) return MG_OK;
    free(m);
    *out = NULL;
    return mg_fail_memory(err, "metrics");
}

void mg_metrics_close(struct mg_metrics *m) {
    if (!m) return;
    free(m->cell);
    free(m);
}

unsigned mg_metrics_label(enum mg_metric id, unsigned i, const char *text) {
    const struct label *label = &table[id].label[i < MAX_LABEL ? i : MAX_LABEL - 1];
    unsigned n = (unsigned)count_values(label);
    for (unsigned k = 0; label->value && k < n; k++)
        if (!strcasecmp(label->value[k], text)) return k;
    return n - 1;
}

static _Atomic uint64_t *cell_of(const struct mg_metrics *m, enum mg_metric id, unsigned a,
                                 unsigned b, unsigned c) {
    const size_t *n = m->n_value[id];
    size_t ia = mg_min_size(a, n[0] - 1), ib = mg_min_size(b, n[1] - 1),
           ic = mg_min_size(c, n[2] - 1);
    return &m->cell[m->at[id] + (ia * n[1] + ib) * n[2] + ic];
}

void mg_metrics_add_at(struct mg_metrics *m, enum mg_metric id, uint64_t n, unsigned a, unsigned b,
                       unsigned c) {
    if (table[id].kind == COUNTER)
        atomic_fetch_add_explicit(cell_of(m, id, a, b, c), n, memory_order_relaxed);
}

static double as_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t as_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void add_double(_Atomic uint64_t *cell, double x) {
    uint64_t before = atomic_load_explicit(cell, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(cell, &before, as_bits(as_double(before) + x),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

void mg_metrics_set_at(struct mg_metrics *m, enum mg_metric id, double x, unsigned a) {
    if (table[id].kind == GAUGE)
        atomic_store_explicit(cell_of(m, id, a, 0, 0), as_bits(x), memory_order_relaxed);
}

void mg_metrics_step(struct mg_metrics *m, enum mg_metric id, int by) {
    if (table[id].kind == GAUGE) add_double(cell_of(m, id, 0, 0, 0), by);
}

/* Each bucket counts its own values only; the sums that Prometheus wants are made when writing. */
void mg_metrics_observe(struct mg_metrics *m, enum mg_metric id, double x) {
    if (table[id].kind != HISTOGRAM || isnan(x)) return;
    size_t n = count_buckets(&table[id]), i = 0;
    while (i < n && x > table[id].bucket[i]) i++;
    atomic_fetch_add_explicit(&m->cell[m->at[id] + i], 1, memory_order_relaxed);
    add_double(&m->cell[m->at[id] + n + 1], x);
}

double mg_metrics_value(const struct mg_metrics *m, enum mg_metric id, unsigned a, unsigned b,
                        unsigned c) {
    uint64_t bits = atomic_load_explicit(cell_of(m, id, a, b, c), memory_order_relaxed);
    return table[id].kind == COUNTER ? (double)bits : as_double(bits);
}

static void add_number(struct mg_buf *out, double x) {
    if (isnan(x))
        mg_buf_add_str(out, "NaN");
    else if (isinf(x))
        mg_buf_add_str(out, x > 0 ? "+Inf" : "-Inf");
    else if (x == floor(x) && fabs(x) < 1e15)
        mg_buf_printf(out, "%.0f", x);
    else
        mg_buf_printf(out, "%.15g", x);
}

static void add_head(struct mg_buf *out, const char *name, const char *help, const char *type) {
    mg_buf_printf(out, "# HELP %s ", name);
    for (const char *c = help; *c; c++) {
        if (*c == '\\' || *c == '\n')
            mg_buf_add_str(out, *c == '\n' ? "\\n" : "\\\\");
        else
            mg_buf_add_byte(out, (uint8_t)*c);
    }
    mg_buf_printf(out, "\n# TYPE %s %s\n", name, type);
}

static void add_label(struct mg_buf *out, bool first, const char *name, const char *value) {
    mg_buf_printf(out, "%s%s=\"", first ? "{" : ",", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            mg_buf_add_str(out, "\\n");
        else if (*c == '\\' || *c == '"')
            mg_buf_printf(out, "\\%c", *c);
        else
            mg_buf_add_byte(out, (uint8_t)*c);
    }
    mg_buf_add_byte(out, '"');
}

static void write_series(const struct mg_metrics *m, enum mg_metric id, const char *name,
                         struct mg_buf *out) {
    const struct metric *metric = &table[id];
    const size_t *n = m->n_value[id];
    for (size_t i = 0; i < n[0] * n[1] * n[2]; i++) {
        uint64_t bits = atomic_load_explicit(&m->cell[m->at[id] + i], memory_order_relaxed);
        const size_t value[MAX_LABEL] = {i / (n[1] * n[2]), i / n[2] % n[1], i % n[2]};
        if (!bits && metric->sparse) continue;
        mg_buf_add_str(out, name);
        for (size_t k = 0; k < MAX_LABEL && metric->label[k].name; k++)
            add_label(out, k == 0, metric->label[k].name, metric->label[k].value[value[k]]);
        mg_buf_add_str(out, metric->label[0].name ? "} " : " ");
        if (metric->kind == COUNTER)
            mg_buf_printf(out, "%" PRIu64, bits);
        else
            add_number(out, as_double(bits));
        mg_buf_add_byte(out, '\n');
    }
}

static void write_histogram(const struct mg_metrics *m, enum mg_metric id, const char *name,
                            struct mg_buf *out) {
    size_t n = count_buckets(&table[id]);
    const _Atomic uint64_t *cell = &m->cell[m->at[id]];
    uint64_t sum = 0;
    for (size_t i = 0; i <= n; i++) {
        sum += atomic_load_explicit(&cell[i], memory_order_relaxed);
        mg_buf_printf(out, "%s_bucket{le=\"", name);
        add_number(out, i < n ? table[id].bucket[i] : INFINITY);
        mg_buf_printf(out, "\"} %" PRIu64 "\n", sum);
    }
    mg_buf_printf(out, "%s_sum ", name);
    add_number(out, as_double(atomic_load_explicit(&cell[n + 1], memory_order_relaxed)));
    mg_buf_printf(out, "\n%s_count %" PRIu64 "\n", name, sum);
}

static void write_single(struct mg_buf *out, const char *name, const char *help, const char *type,
                         double x) {
    if (!(x >= 0)) return;
    add_head(out, name, help, type);
    mg_buf_printf(out, "%s ", name);
    add_number(out, x);
    mg_buf_add_byte(out, '\n');
}

static void write_info(const struct mg_metrics_info *info, struct mg_buf *out) {
    char threads[16];
    snprintf(threads, sizeof threads, "%d", info->n_thread);
    add_head(out, "margay_model_info", "The model that answers; always 1.", "gauge");
    mg_buf_add_str(out, "margay_model_info");
    add_label(out, true, "model", info->model ? info->model : "");
    add_label(out, false, "quant", info->weights ? info->weights : "");
    add_label(out, false, "threads", threads);
    add_label(out, false, "isa", info->tier ? info->tier : "");
    add_label(out, false, "version", info->version ? info->version : "");
    mg_buf_add_str(out, "} 1\n");
    write_single(out, "process_cpu_seconds_total", "Processor time used, user and system.",
                 "counter", info->cpu_seconds);
    write_single(out, "process_resident_memory_bytes", "Resident memory.", "gauge",
                 info->resident_bytes);
    write_single(out, "process_start_time_seconds", "Start of the process, seconds since 1970.",
                 "gauge", info->start_seconds);
    write_single(out, "process_open_fds", "Open file descriptors.", "gauge", info->open_fds);
    write_single(out, "process_max_fds", "Most file descriptors that may be open.", "gauge",
                 info->max_fds);
}

bool mg_metrics_write(const struct mg_metrics *m, const struct mg_metrics_info *info,
                      struct mg_buf *out) {
    static const char *const type[] = {"counter", "gauge", "histogram"};
    for (enum mg_metric id = 0; id < MG_N_METRIC; id++) {
        char name[80];
        snprintf(name, sizeof name, "margay_%s", table[id].name);
        add_head(out, name, table[id].help, type[table[id].kind]);
        if (table[id].kind == HISTOGRAM)
            write_histogram(m, id, name, out);
        else
            write_series(m, id, name, out);
    }
    write_info(info, out);
    return !out->failed;
}
