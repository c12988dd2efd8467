/* cli/load.h - what the files of margay load share: the plan, what is asked, what came of it.
 *
 *     load.c            the command: options -> plan, run, print, exit status
 *     load_options.c    reads and checks the options
 *     load_questions.c  pictures and questions -> pieces of request bodies, made once
 *     load_arrivals.c   when requests are due (open loop); random numbers
 *     load_link.c       one connection: connect, TLS, write a request, read its reply
 *     load_answer.c     what the reply says: tokens, usage, errors
 *     load_call.c       one request from its due time to its outcome
 *     load_run.c        the loop: clients or arrivals, connections, ends, ctrl-C, progress
 *     load_record.c     counts and histograms
 *     load_report.c     table, JSON; load_plot.c: SVG
 *
 * Times are seconds of mg_clock. A request's latency counts from when it was due, not from when it
 * could be sent: an overloaded server, or a limit on connections, would otherwise hide the time
 * that people wait (coordinated omission). What the server alone took is recorded beside it.
 * One thread.
 */
#ifndef MG_CLI_LOAD_H
#define MG_CLI_LOAD_H

#include "cli/json.h"
#include "cli/load_arrivals.h"
#include "cli/load_histogram.h"
#include "cli/session.h"

#include "net/url.h"

#include <sys/socket.h>

/* How a request ended. The names are those of the JSON report. */
enum mg_load_kind {
    MG_LOAD_OK,
    MG_LOAD_LEFT,       /* --abort: the client went away on purpose */
    MG_LOAD_UNFINISHED, /* under way when the run was interrupted */
    /* Errors from here: */
    MG_LOAD_REFUSED,   /* nobody listens */
    MG_LOAD_CONNECT,   /* no connection for another reason */
    MG_LOAD_TLS,       /* no handshake, or a certificate that isn't trusted */
    MG_LOAD_TIMEOUT,   /* not complete within --timeout */
    MG_LOAD_CUT,       /* the connection ended before the answer did */
    MG_LOAD_MALFORMED, /* not HTTP, not events, not JSON, or not a chat completion */
    MG_LOAD_STATUS,    /* a status other than 200 */
    MG_LOAD_IN_STREAM, /* an error told within a stream that had begun with 200 */
    MG_LOAD_UNSENT,    /* too many waited for a connection */
    MG_LOAD_MEMORY,    /* of ours */
    MG_N_LOAD_KIND
};
extern const char *const mg_load_kind_name[MG_N_LOAD_KIND];

enum { MG_LOAD_CODE = 48 }; /* bytes of an error's code with its zero byte */

/* A limit of --fail-above. */
struct mg_load_limit {
    enum { MG_LOAD_LIMIT_ERRORS, MG_LOAD_LIMIT_FIRST, MG_LOAD_LIMIT_ANSWER } what;
    double quantile; /* of FIRST and ANSWER */
    double most;     /* percent, or milliseconds */
    const char *text;
};

struct mg_load_plan {
    struct mg_options *o;
    /* The server. */
    const char *url;       /* as given */
    struct mg_url parsed;  /* host empty for a Unix socket */
    const char *unix_path; /* or NULL */
    char path[1024];       /* before "/chat/completions": "/v1" */
    char host_field[300];  /* value of Host */
    char tls_name[256];    /* the host without brackets */
    struct sockaddr_storage address;
    socklen_t n_address;
    const char *const *key; /* n_key API keys; clients take turns */
    size_t n_key;
    const char *const *header; /* n_header further fields, "Name: value" */
    size_t n_header;
    const char *ca_file;
    bool trust_all;
    /* What is asked. */
    char model[256];
    const char *pictures;  /* folder, or NULL */
    const char *questions; /* file, or NULL */
    const char *question;  /* one for all, or NULL */
    bool upload, stream;
    long max_tokens;
    const char *extra; /* JSON object with further members of the body, or NULL */
    /* How. */
    bool open;                        /* open loop */
    size_t n_client;                  /* closed loop */
    double think;                     /* seconds, mean */
    struct mg_load_arrivals arrivals; /* open loop */
    double warm_up;                   /* seconds that are not counted */
    double duration;    /* seconds after the warm-up in which requests begin; 0: no end */
    uint64_t n_request; /* counted requests; 0: no end */
    double abort;       /* share of clients that leave */
    double timeout;
    size_t max_connection;
    bool keep_alive;
    uint64_t seed;
    /* What is printed. */
    bool json, csv;
    const char *svg; /* or NULL */
    struct mg_load_limit limit[16];
    size_t n_limit;
};
/* Fills all but address and model. Texts live as long as the options. */
enum mg_status mg_load_plan_read(struct mg_options *o, struct mg_load_plan *out,
                                 struct mg_err *err);
/* Finds the address, and that somebody answers there; "localhost" may be two. */
enum mg_status mg_load_plan_resolve(struct mg_load_plan *p, struct mg_err *err);
/* Room for the plan's connections: the limit on open files goes up as far as it may, and
 * max_connection down to what it allows, where that is no error. */
enum mg_status mg_load_plan_files(struct mg_load_plan *p, struct mg_err *err);

/* Bodies, in pieces that requests share: head PICTURE middle QUESTION tail, where a request without
 * a picture has head_bare in place of the first three. */
struct mg_load_text {
    char *data; /* owned */
    size_t n;
};
struct mg_load_questions {
    struct mg_load_text head, head_bare, middle, tail;
    struct mg_load_text *picture; /* n_picture URLs as JSON text without quotes */
    char **name;                  /* their file names, owned */
    struct mg_load_text *file;    /* with --upload, until they are uploaded: the files' bytes */
    size_t n_picture;
    struct mg_load_text *question; /* n_question JSON texts without quotes */
    size_t n_question;
};
/* Reads pictures and questions; `upload` keeps the files' bytes instead of URLs. */
enum mg_status mg_load_questions_open(struct mg_load_questions *q, const struct mg_load_plan *p,
                                      struct mg_err *err);
/* head, middle and tail; the model's name must be known. */
enum mg_status mg_load_questions_frame(struct mg_load_questions *q, const struct mg_load_plan *p,
                                       struct mg_err *err);
/* A multipart body with picture i; its Content-Type into `type`. */
enum mg_status mg_load_questions_upload(const struct mg_load_questions *q, size_t i,
                                        struct mg_buf *body, char *type, size_t cap,
                                        struct mg_err *err);
/* The picture has been uploaded: its URL is now "margay-file:ID". */
enum mg_status mg_load_questions_uploaded(struct mg_load_questions *q, size_t i, const char *id,
                                          struct mg_err *err);
void mg_load_questions_close(struct mg_load_questions *q);

/* One request's outcome, handed to the record. Counts are -1 where the server told none. */
struct mg_load_outcome {
    enum mg_load_kind kind;
    int status;              /* of HTTP, 0 when there was none */
    char code[MG_LOAD_CODE]; /* the error's, "" */
    uint64_t index;          /* from 0 on, in order of due times */
    size_t client;           /* closed loop */
    size_t picture, question;
    double due, sent, first, last, end; /* clock; sent and first 0 when it came not so far */
    uint64_t n_chunk;                   /* pieces of text in the stream */
    int64_t prompt_tokens, cached_tokens, image_tokens, completion_tokens;
    uint64_t n_byte;  /* of the reply's body */
    bool retry_after; /* the refusal said when to come again */
};

struct mg_load_error_row {
    enum mg_load_kind kind;
    int status;
    char code[MG_LOAD_CODE];
    uint64_t n;
};
struct mg_load_second {
    uint32_t sent, ok, error, chunk; /* chunk: pieces of text that came in it */
    uint32_t under_way;              /* at its end */
    float p50, p95, max;             /* seconds, of answers that ended in it; 0 when none */
};
enum { MG_LOAD_MAX_ERROR_ROW = 64, MG_LOAD_MAX_SECOND = 86400 };

struct mg_load_record {
    double begin; /* clock at which counting begins: the end of the warm-up */
    double end;   /* clock of the last outcome, or of the interruption */
    uint64_t n_sent, n_kind[MG_N_LOAD_KIND];
    struct mg_load_error_row error[MG_LOAD_MAX_ERROR_ROW];
    size_t n_error; /* the last row takes what has no row of its own */
    /* From the due time: */
    struct mg_load_histogram first, answer;
    /* From sending: the server's own time. */
    struct mg_load_histogram service;
    struct mg_load_histogram between; /* from piece to piece of a stream */
    struct mg_load_histogram token;   /* (end - first) / (tokens - 1) of an answer */
    struct mg_load_histogram late;    /* from due to sending */
    int64_t prompt_tokens, cached_tokens, image_tokens, completion_tokens;
    uint64_t n_usage; /* answers with a usage */
    uint64_t n_chunk; /* in answers that ended well */
    uint64_t n_byte, n_retry_after;
    uint64_t n_opened, n_resent; /* connections; requests sent anew on a fresh one */
    size_t most_under_way, under_way;
    struct mg_load_second *second; /* n_second of cap_second, owned; at most MG_LOAD_MAX_SECOND */
    size_t n_second, cap_second;
    struct mg_load_histogram this_second; /* answers of second n_second - 1 */
    bool interrupted;
    bool lacks_memory; /* for the seconds */
    struct mg_buf csv; /* lines not yet written */
};
void mg_load_record_begin(struct mg_load_record *r, double begin);
/* A counted request is due at this time; it is under way until its outcome. */
void mg_load_record_sent(struct mg_load_record *r, double due);
void mg_load_record_chunk(struct mg_load_record *r, double now, double gap, bool first);
void mg_load_record_outcome(struct mg_load_record *r, const struct mg_load_outcome *x);
/* Closes the last second. */
void mg_load_record_end(struct mg_load_record *r, double now);
void mg_load_record_free(struct mg_load_record *r);
uint64_t mg_load_record_errors(const struct mg_load_record *r);
/* Share of errors in percent among answers and errors; 0 when there were none. */
double mg_load_record_error_share(const struct mg_load_record *r);

/* Runs the plan. MG_ERR_CANCELLED is in r->interrupted, not in the status. */
enum mg_status mg_load_run(struct mg_load_plan *p, struct mg_load_questions *q,
                           struct mg_load_record *r, struct mg_err *err);

void mg_load_csv_head(struct mg_buf *out);
void mg_load_csv_line(struct mg_buf *out, const struct mg_load_outcome *x, double begin,
                      const char *picture);
bool mg_load_json(const struct mg_load_plan *p, const struct mg_load_questions *q,
                  const struct mg_load_record *r, struct mg_buf *out);
bool mg_load_table(const struct mg_load_plan *p, const struct mg_load_questions *q,
                   const struct mg_load_record *r, struct mg_buf *out);
bool mg_load_plot(const struct mg_load_plan *p, const struct mg_load_record *r, struct mg_buf *out);
/* "8 clients", "open loop, 20/s, poisson" */
void mg_load_say_load(const struct mg_load_plan *p, char *out, size_t cap);

#endif
