/* cli/ask.c - margay ask: one question, its pictures, one answer.
 *
 * What can be refused is refused before the model is loaded: wrong options, a question that isn't
 * there, files that can't be read. Then: load, decode the pictures in order, the question behind
 * them, stream the answer.
 */
#include "cli/commands.h"

#include "base/io.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_QUESTION_BYTES ((size_t)16 << 20)

/* What is asked. Paths are views into the options; the question too, or into `file`. */
struct input {
    struct mg_options *o;
    const char **path;
    size_t n_path, cap_path;
    bool stdin_used;
    const char *question;
    size_t n_question;
    struct mg_buf file; /* of --file */
};

static enum mg_status usage(struct mg_err *err, const char *text) {
    return mg_fail(err, MG_ERR_ARGUMENT, "usage", "%s", text);
}

static enum mg_status use_stdin(struct input *in, struct mg_err *err) {
    if (in->stdin_used) return usage(err, "standard input (-) can be read only once");
    in->stdin_used = true;
    return MG_OK;
}

static enum mg_status add_path(void *user, const char *path, struct mg_err *err) {
    struct input *in = user;
    if (in->n_path == in->cap_path) {
        size_t cap = in->cap_path ? in->cap_path * 2 : 16;
        const char **grown = mg_arena_alloc(&in->o->arena, cap, sizeof *grown);
        if (!grown) return mg_fail_memory(err, "pictures");
        if (in->n_path) memcpy(grown, in->path, in->n_path * sizeof *grown);
        in->path = grown;
        in->cap_path = cap;
    }
    in->path[in->n_path++] = path;
    return strcmp(path, "-") ? MG_OK : use_stdin(in, err);
}

/* A picture that can't be read fails here, before seconds of loading. */
static enum mg_status check_path(const char *path, struct mg_err *err) {
    struct stat st;
    if (!strcmp(path, "-")) return MG_OK;
    if (stat(path, &st)) return mg_fail_errno(err, "read", path, errno);
    if (S_ISDIR(st.st_mode))
        return mg_fail(err, MG_ERR_IO, "is_folder",
                       "%s is a folder; --folder asks about every picture in one", path);
    if (access(path, R_OK)) return mg_fail_errno(err, "read", path, errno);
    return MG_OK;
}

static enum mg_status read_question(struct input *in, struct mg_err *err) {
    struct mg_options *o = in->o;
    const char *path = mg_opt_text(o, MG_OPT_FILE, NULL);
    if (mg_opt_set(o, MG_OPT_PROMPT)) {
        if (path) return usage(err, "--prompt and --file both give the question");
        in->question = mg_opt_text(o, MG_OPT_PROMPT, "");
        in->n_question = strlen(in->question);
    } else if (path) {
        enum mg_status st = strcmp(path, "-") ? MG_OK : use_stdin(in, err);
        in->file.max = MAX_QUESTION_BYTES;
        if (!st) st = mg_file_read(path, MAX_QUESTION_BYTES, &in->file, err);
        if (st) return st;
        in->question = in->file.data ? (const char *)in->file.data : "";
        in->n_question = in->file.n;
        while (in->n_question && strchr("\r\n", in->question[in->n_question - 1])) in->n_question--;
    } else {
        struct stat st;
        const char *last = o->n_arg ? o->arg[o->n_arg - 1] : NULL;
        if (!last) return usage(err, "no question; margay ask photo.jpg \"What is on the table?\"");
        if (!strcmp(last, "-") || (!stat(last, &st) && S_ISREG(st.st_mode)))
            return mg_fail(
                err, MG_ERR_ARGUMENT, "usage",
                "no question behind the picture %.200s (the question is the last argument)", last);
        in->question = last;
        in->n_question = strlen(last);
        o->n_arg--;
    }
    if (!in->n_question) return usage(err, "the question is empty");
    return MG_OK;
}

static enum mg_status read_input(struct input *in, struct mg_err *err) {
    struct mg_options *o = in->o;
    enum mg_status st = read_question(in, err);
    for (size_t i = 0; i < o->value[MG_OPT_IMAGE].n_list && !st; i++)
        st = mg_session_split_paths(o, o->value[MG_OPT_IMAGE].list[i], add_path, in, err);
    for (size_t i = 0; i < o->n_arg && !st; i++) st = add_path(in, o->arg[i], err);
    if (st) return st;
    bool folder = mg_opt_set(o, MG_OPT_FOLDER);
    if (folder && in->n_path) return usage(err, "with --folder there are no other pictures");
    if (!folder && mg_opt_set(o, MG_OPT_OUTPUT)) return usage(err, "--output goes with --folder");
    for (size_t i = 0; i < in->n_path && !st; i++) st = check_path(in->path[i], err);
    return st;
}

static void json_picture(struct mg_json *j, const struct mg_image_report *r) {
    mg_json_open(j, '{');
    mg_json_key(j, "format"), mg_json_str(j, r->format);
    mg_json_key(j, "width"), mg_json_int(j, r->width);
    mg_json_key(j, "height"), mg_json_int(j, r->height);
    mg_json_key(j, "orientation"), mg_json_int(j, r->orientation);
    mg_json_key(j, "frames"), mg_json_int(j, r->frames);
    mg_json_key(j, "frame_used"), mg_json_int(j, 0);
    mg_json_key(j, "alpha"), mg_json_bool(j, r->alpha);
    mg_json_key(j, "resized"), mg_json_open(j, '{');
    mg_json_key(j, "width"), mg_json_int(j, r->resized_width);
    mg_json_key(j, "height"), mg_json_int(j, r->resized_height);
    mg_json_close(j, '}');
    mg_json_key(j, "tokens"), mg_json_int(j, (int64_t)r->tokens);
    mg_json_key(j, "cells"), mg_json_int(j, (int64_t)r->cells);
    mg_json_key(j, "kept"), mg_json_int(j, (int64_t)r->kept);
    mg_json_key(j, "cached"), mg_json_bool(j, r->cached);
    mg_json_key(j, "bytes"), mg_json_int(j, (int64_t)r->bytes);
    mg_json_close(j, '}');
}

void mg_json_answer(struct mg_json *j, const mg_chat *chat, const struct mg_answer *a) {
    mg_json_key(j, "text"), mg_json_string(j, a->text ? a->text : "", a->n_text);
    mg_json_key(j, "token_ids"), mg_json_open(j, '[');
    for (size_t i = 0; i < a->n_token; i++) mg_json_int(j, a->token[i]);
    mg_json_close(j, ']');
    mg_json_key(j, "finish_reason"), mg_json_str(j, a->finish_reason);
    mg_json_key(j, "stop_detail"), mg_json_str(j, a->stop_detail);
    mg_json_key(j, "usage"), mg_json_open(j, '{');
    mg_json_key(j, "prompt_tokens"), mg_json_int(j, (int64_t)a->prompt_tokens);
    mg_json_key(j, "completion_tokens"), mg_json_int(j, (int64_t)a->n_token);
    mg_json_key(j, "total_tokens"), mg_json_int(j, (int64_t)(a->prompt_tokens + a->n_token));
    mg_json_key(j, "prompt_tokens_details"), mg_json_open(j, '{');
    mg_json_key(j, "cached_tokens"), mg_json_int(j, (int64_t)a->cached_tokens);
    mg_json_key(j, "image_tokens"), mg_json_int(j, (int64_t)a->image_tokens);
    mg_json_close(j, '}');
    mg_json_close(j, '}');
    mg_json_key(j, "timings"), mg_json_open(j, '{');
    mg_json_key(j, "image_ms"), mg_json_number(j, a->image_ms, 3);
    mg_json_key(j, "vision_ms"), mg_json_number(j, a->vision_ms, 3);
    mg_json_key(j, "prefill_ms"), mg_json_number(j, a->prefill_ms, 3);
    mg_json_key(j, "first_token_ms"), mg_json_number(j, a->first_token_ms, 3);
    mg_json_key(j, "decode_ms_per_token"), mg_json_number(j, a->decode_ms_per_token, 3);
    mg_json_key(j, "total_ms"), mg_json_number(j, a->total_ms, 3);
    mg_json_key(j, "drafts"), mg_json_open(j, '{');
    mg_json_key(j, "passes"), mg_json_int(j, (int64_t)a->passes);
    mg_json_key(j, "drafted"), mg_json_int(j, (int64_t)a->drafted_tokens);
    mg_json_key(j, "accepted"), mg_json_int(j, (int64_t)a->accepted_tokens);
    mg_json_key(j, "tokens_per_pass");
    mg_json_number(j, a->passes ? (double)(a->n_token - 1) / (double)a->passes : 0, 3);
    mg_json_close(j, '}');
    mg_json_close(j, '}');
    mg_json_key(j, "images"), mg_json_open(j, '[');
    struct mg_image_report r;
    for (size_t i = 0; mg_chat_image(chat, i, &r); i++) json_picture(j, &r);
    mg_json_close(j, ']');
}

/* The end of what was streamed, or the one object of --json. */
static enum mg_status finish(const struct mg_options *o, const mg_chat *chat,
                             const struct mg_answer *a, const struct mg_run *run,
                             struct mg_err *err) {
    if (mg_opt_flag(o, MG_OPT_VERBOSE, false))
        mg_log(MG_LOG_INFO,
               "%zu prompt tokens (%zu of pictures), %zu generated; vision %.0f ms, prefill %.0f "
               "ms, first "
               "token %.0f ms, %.1f ms a token (%s)",
               a->prompt_tokens, a->image_tokens, a->n_token, a->vision_ms, a->prefill_ms,
               a->first_token_ms, a->decode_ms_per_token, a->finish_reason ? a->finish_reason : "");
    if (run->stream)
        return !run->any || run->last != '\n' ? mg_write(STDOUT_FILENO, "\n", 1, err) : MG_OK;
    struct mg_buf out = {0};
    struct mg_json j = {.out = &out};
    mg_json_open(&j, '{');
    mg_json_answer(&j, chat, a);
    mg_json_close(&j, '}');
    enum mg_status st = mg_buf_add_byte(&out, '\n') ? mg_write(STDOUT_FILENO, out.data, out.n, err)
                                                    : mg_fail_memory(err, "JSON");
    mg_buf_free(&out);
    return st;
}

static enum mg_status ask(struct input *in, mg_engine *engine, struct mg_err *err) {
    struct mg_options *o = in->o;
    mg_chat *chat = NULL;
    struct mg_progress progress;
    struct mg_answer_options options;
    mg_progress_init(&progress, o);
    mg_session_answer_options(o, engine, &options);
    enum mg_status st = mg_session_open_chat(o, engine, &chat, err);
    for (size_t i = 0; i < in->n_path && !st; i++)
        st = mg_chat_add_image_file(chat, in->path[i], err);
    if (!st) st = mg_chat_add_text_n(chat, MG_USER, in->question, in->n_question, err);
    if (!st) {
        struct mg_run run = {.progress = &progress,
                             .stream = !mg_opt_flag(o, MG_OPT_JSON, false) &&
                                       !mg_opt_flag(o, MG_OPT_JSONL, false)};
        struct mg_answer answer;
        st = mg_session_answer(chat, &options, &run, &answer, err);
        bool cut = st == MG_ERR_CANCELLED && (answer.finish_reason || run.any);
        if (!st || cut) {
            enum mg_status wrote = finish(o, chat, &answer, &run, cut ? NULL : err);
            if (!st) st = wrote;
        }
    }
    mg_chat_close(chat);
    return st;
}

enum mg_exit mg_cmd_ask(struct mg_options *o) {
    struct mg_err err = {0};
    struct input in = {.o = o};
    mg_engine *engine = NULL;
    enum mg_exit code = MG_EXIT_OK;
    mg_interrupt_arm();
    enum mg_status st = read_input(&in, &err);
    if (!st && mg_opt_set(o, MG_OPT_FOLDER)) {
        code = mg_ask_folder(o, in.question, in.n_question);
    } else {
        if (!st) st = mg_session_open(o, &engine, &err);
        if (!st) st = ask(&in, engine, &err);
        if (st) code = mg_report(o, &err);
    }
    mg_engine_close(engine);
    mg_buf_free(&in.file);
    return code;
}
