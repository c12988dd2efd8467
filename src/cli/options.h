/* cli/options.h - one table of commands and options, and the values that a run of margay has for
 * them.
 *
 * Everything that a person can set stands once in option_tables.c: its names, type, range, default,
 * help and the commands that take it; the commands in command_table.c. From these tables come the
 * parser (options.c), the environment and INI file readers (options_env.c), help, man page and
 * shell completion (help.c).
 *
 *     option  >  MARGAY_NAME  >  LLAMA_ARG_NAME  >  INI [command]  >  INI (no section)  >  built-in
 *
 * An option's primary name is "top-k": `--top-k 5`, `--top-k=5`, MARGAY_TOP_K, `top-k = 5`. Further
 * spellings are llama-server's (`-np`, `-sys`: one dash, several letters), so getopt is of no use
 * here. Strings in struct mg_options live in argv, in the environment or in its arena. One thread.
 */
#ifndef MG_CLI_OPTIONS_H
#define MG_CLI_OPTIONS_H

#include "base/err.h"
#include "base/mem.h"

enum mg_command {
    MG_CMD_ASK,
    MG_CMD_CHAT,
    MG_CMD_SERVE,
    MG_CMD_WORKER,
    MG_CMD_TRACE,
    MG_CMD_TOKENIZE,
    MG_CMD_CONVERT,
    MG_CMD_PULL,
    MG_CMD_BENCH,
    MG_CMD_DOCTOR,
    MG_CMD_LOAD,
    MG_CMD_HEALTH,
    MG_CMD_HELP,
    MG_CMD_VERSION,
    MG_CMD_COMPLETION,
    MG_N_CMD
};

struct mg_command_info {
    const char *name;
    const char *arguments;  /* after the name in a usage line */
    const char *summary;    /* one line, no full stop */
    const char *detail;     /* paragraphs of --help and the man page */
    const char *example[4]; /* command lines, NULL-terminated */
    size_t max_arg;         /* positional arguments it takes */
};
extern const struct mg_command_info mg_commands[MG_N_CMD];

enum mg_opt {
    MG_OPT_MODEL,
    MG_OPT_WEIGHTS,
    MG_OPT_CACHE_DIR,
    MG_OPT_THREADS,
    MG_OPT_CPU_RANGE,
    MG_OPT_PIN,
    MG_OPT_CTX_SIZE,
    MG_OPT_PREFILL_CHUNK,
    MG_OPT_IMAGE,
    MG_OPT_PROMPT,
    MG_OPT_FILE,
    MG_OPT_SYSTEM_PROMPT,
    MG_OPT_FOLDER,
    MG_OPT_DETAIL,
    MG_OPT_IMAGE_MAX_TOKENS,
    MG_OPT_IMAGE_MIN_TOKENS,
    MG_OPT_PRUNE,
    MG_OPT_BACKGROUND,
    MG_OPT_MAX_IMAGE_BYTES,
    MG_OPT_MAX_IMAGE_PIXELS,
    MG_OPT_MAX_IMAGE_SIDE,
    MG_OPT_MAX_IMAGES,
    MG_OPT_PRESET,
    MG_OPT_MAX_TOKENS,
    MG_OPT_MODEL_SAMPLING,
    MG_OPT_TEMP,
    MG_OPT_TOP_K,
    MG_OPT_TOP_P,
    MG_OPT_MIN_P,
    MG_OPT_REPEAT_PENALTY,
    MG_OPT_PRESENCE_PENALTY,
    MG_OPT_FREQUENCY_PENALTY,
    MG_OPT_SEED,
    MG_OPT_STOP,
    MG_OPT_DRAFT,
    MG_OPT_IGNORE_EOS,
    MG_OPT_LOOP_CHECK,
    MG_OPT_JSON,
    MG_OPT_JSONL,
    MG_OPT_OUTPUT,
    MG_OPT_SPECIAL,
    MG_OPT_MESSAGES,
    MG_OPT_IMAGES,
    MG_OPT_OUT,
    MG_OPT_VERIFY,
    MG_OPT_PIXEL_VALUES,
    MG_OPT_REVISION,
    MG_OPT_CONNECTIONS,
    MG_OPT_RETRIES,
    MG_OPT_STALL_TIME,
    MG_OPT_SHAPE,
    MG_OPT_SIZE,
    MG_OPT_PROMPT_TOKENS,
    MG_OPT_RUNS,
    MG_OPT_WARMUP,
    MG_OPT_BATCH,
    MG_OPT_CSV,
    MG_OPT_PLOT,
    MG_OPT_HOST,
    MG_OPT_PORT,
    MG_OPT_UNIX_SOCKET,
    MG_OPT_PARALLEL,
    MG_OPT_ALIAS,
    MG_OPT_API_KEY,
    MG_OPT_API_KEY_FILE,
    MG_OPT_SSL_CERT,
    MG_OPT_SSL_KEY,
    MG_OPT_API_PREFIX,
    MG_OPT_CORS_ORIGIN,
    MG_OPT_ALLOWED_HOSTS,
    MG_OPT_MEDIA_PATH,
    MG_OPT_REMOTE_HOST,
    MG_OPT_MAX_QUEUE,
    MG_OPT_QUEUE_TIME,
    MG_OPT_DRAIN_TIME,
    MG_OPT_CACHE_RAM,
    MG_OPT_IMAGE_CACHE,
    MG_OPT_ANSWER_CACHE,
    MG_OPT_ANSWER_CACHE_TIME,
    MG_OPT_SIMILAR_CACHE,
    MG_OPT_MAX_BODY,
    MG_OPT_SSE_PING,
    MG_OPT_ACCESS_LOG,
    MG_OPT_ACCESS_LOG_JSON,
    MG_OPT_METRICS,
    MG_OPT_SLOTS,
    MG_OPT_UI,
    MG_OPT_PAGE_PATH,
    MG_OPT_QUEUE,
    MG_OPT_QUEUE_NAME,
    MG_OPT_QUEUE_LEASE,
    MG_OPT_QUEUE_TRIES,
    MG_OPT_QUEUE_KEEP,
    MG_OPT_REDIS,
    MG_OPT_REDIS_CA,
    MG_OPT_REDIS_CERT,
    MG_OPT_REDIS_KEY,
    MG_OPT_REDIS_BUDGET,
    MG_OPT_REDIS_TTL,
    MG_OPT_QUICK,
    MG_OPT_ROOT,
    MG_OPT_LOAD_MODEL,
    MG_OPT_CLOSED,
    MG_OPT_THINK,
    MG_OPT_OPEN,
    MG_OPT_ARRIVALS,
    MG_OPT_DURATION,
    MG_OPT_REQUESTS,
    MG_OPT_WARM_UP,
    MG_OPT_ABORT,
    MG_OPT_TIMEOUT,
    MG_OPT_MAX_CONNECTIONS,
    MG_OPT_KEEP_ALIVE,
    MG_OPT_HEADER,
    MG_OPT_CA_FILE,
    MG_OPT_INSECURE,
    MG_OPT_PICTURES,
    MG_OPT_UPLOAD,
    MG_OPT_QUESTION,
    MG_OPT_QUESTIONS,
    MG_OPT_STREAM,
    MG_OPT_EXTRA,
    MG_OPT_FAIL_ABOVE,
    MG_OPT_MAN,
    MG_OPT_CONFIG,
    MG_OPT_PROGRESS,
    MG_OPT_VERBOSE,
    MG_OPT_HELP,
    MG_N_OPT
};

enum mg_opt_type {
    MG_TYPE_FLAG,   /* on or off; --no-NAME where `negatable` */
    MG_TYPE_INT,    /* min..max, both whole */
    MG_TYPE_FLOAT,  /* min..max */
    MG_TYPE_STRING, /* not empty */
    MG_TYPE_CHOICE, /* one of `choice` */
    MG_TYPE_LIST    /* a string that may be given again and again */
};

struct mg_opt_info {
    const char *name; /* primary, without dashes */
    const char
        *alias[6]; /* other spellings with their dashes, "-n", "--predict"; NULL-terminated */
    enum mg_opt_type type;
    bool negatable;       /* FLAG: --no-NAME exists */
    bool argv_only;       /* not from the environment or an INI file: says what to do, not how */
    double min, max;      /* INT and FLOAT */
    const char *choice;   /* CHOICE: "f32|bf16" */
    const char *value;    /* the word for the value in help, "FOLDER"; NULL for a flag */
    const char *llama;    /* llama-server's environment name, NULL when it has none */
    const char *fallback; /* the built-in default in words, NULL when there is none to tell */
    const char *group;    /* heading in help */
    const char *help;     /* a sentence or two */
    unsigned commands;    /* bit 1 << enum mg_command */
};
extern const struct mg_opt_info mg_opts[MG_N_OPT];

/* llama-server options for graphics cards: accepted, warned about once, ignored. */
struct mg_ignored_option {
    const char *name[4]; /* spellings with dashes, NULL-terminated */
    int n_value;         /* 0 or 1; -1: a value only when it is on, off or auto */
};
extern const struct mg_ignored_option mg_ignored_options[];
extern const size_t mg_n_ignored_option;

enum mg_opt_source {
    MG_FROM_BUILT_IN,
    MG_FROM_INI,
    MG_FROM_INI_COMMAND,
    MG_FROM_LLAMA_ENV,
    MG_FROM_ENV,
    MG_FROM_ARGV
};

struct mg_opt_value {
    enum mg_opt_source source; /* BUILT_IN: nobody set it */
    bool on;                   /* FLAG */
    int64_t integer;           /* INT */
    double number;             /* FLOAT */
    const char *text;          /* STRING, CHOICE; view */
    const char **list;         /* LIST: n_list views, array owned by the arena */
    size_t n_list;
};

struct mg_options {
    enum mg_command command;
    struct mg_opt_value value[MG_N_OPT];
    const char **arg; /* n_arg positional arguments, views into argv */
    size_t n_arg;
    bool help; /* --help was given: nothing else has been checked */
    struct mg_arena arena;
};

/* Reads `mg_commands[command]`'s options from argv[0..argc), then the environment, then the INI
 * file, and warns on stderr about ignored options. Every failure is MG_ERR_ARGUMENT (or the INI
 * file's read error). */
enum mg_status mg_options_parse(struct mg_options *o, enum mg_command command, int argc,
                                char **argv, struct mg_err *err);
void mg_options_free(struct mg_options *o);

static inline bool mg_opt_set(const struct mg_options *o, enum mg_opt id) {
    return o->value[id].source != MG_FROM_BUILT_IN;
}
/* The value, or `fallback` when nobody set it. */
int64_t mg_opt_int(const struct mg_options *o, enum mg_opt id, int64_t fallback);
double mg_opt_float(const struct mg_options *o, enum mg_opt id, double fallback);
const char *mg_opt_text(const struct mg_options *o, enum mg_opt id, const char *fallback);
bool mg_opt_flag(const struct mg_options *o, enum mg_opt id, bool fallback);
bool mg_opt_is(const struct mg_options *o, enum mg_opt id, const char *choice);

/* The command of this name, or -1. */
int mg_command_find(const char *name);
/* The nearest of the commands, or of a command's option spellings ("--top-k"), to what was typed;
 * NULL when none is near. The option's spelling is written to buf. */
const char *mg_command_suggest(const char *typed);
const char *mg_option_suggest(enum mg_command command, const char *typed, char *buf, size_t cap);

/* Between options.c and options_env.c: checks and stores a text for an option, unless a stronger
 * source has set it. `what` is how messages call it ("--top-k", "MARGAY_TOP_K", "config.ini line 3:
 * top-k"). */
enum mg_status mg_option_store(struct mg_options *o, enum mg_opt id, const char *what,
                               const char *text, enum mg_opt_source source, struct mg_err *err);
enum mg_status mg_options_read_env(struct mg_options *o, struct mg_err *err);
enum mg_status mg_options_read_ini(struct mg_options *o, struct mg_err *err);
/* MARGAY_TOP_K from top-k. */
void mg_option_env_name(enum mg_opt id, char *buf, size_t cap);

#endif
