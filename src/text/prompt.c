/* text/prompt.c - see prompt.h. Answers to Qwen3-VL-Instruct's chat template:
 *
 *     <|im_start|>system\n TEXT [\n\n] [# Tools ...] <|im_end|>\n     when there are tools, too
 *     <|im_start|>user\n TEXT, <|vision_start|><|image_pad|>...<|vision_end|> <|im_end|>\n
 *     <|im_start|>assistant\n TEXT [\n] CALL [\n CALL ...] <|im_end|>\n
 *     <|im_start|>user \n<tool_response>\n TEXT \n</tool_response> ... <|im_end|>\n   tool turns
 *
 * where CALL is <tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>.
 *
 * Text is gathered in `run` until the template writes a control token; then the run is tokenised as
 * a whole, with added tokens off. So a control token can't come from content, and what is benign
 * gets the ids that it has in the reference, which tokenises the rendered prompt.
 */
#include "text/prompt.h"

#include "text/tool_json.h"

#include <stdlib.h>
#include <string.h>

#define RUN_MAX ((size_t)64 << 20) /* bytes between two control tokens */

enum control {
    IM_START,
    IM_END,
    VISION_START,
    VISION_END,
    IMAGE_PAD,
    TOOL_CALL,
    TOOL_CALL_END,
    TOOL_RESPONSE,
    TOOL_RESPONSE_END,
    N_CONTROL
};
static const char *const control_text[N_CONTROL] = {
    "<|im_start|>", "<|im_end|>",   "<|vision_start|>", "<|vision_end|>",  "<|image_pad|>",
    "<tool_call>",  "</tool_call>", "<tool_response>",  "</tool_response>"};

struct builder {
    const struct mg_tokenizer *tok;
    struct mg_prompt *out;
    struct mg_buf run;     /* text since the last control token, owned */
    int32_t id[N_CONTROL]; /* or -1 */
    struct mg_err *err;
    enum mg_status status; /* the first failure; everything after it does nothing */
};

static void text(struct builder *b, struct mg_slice s) {
    if (b->status != MG_OK || s.n == 0) return;
    if (s.n > RUN_MAX - mg_min_size(b->run.n, RUN_MAX))
        b->status = mg_fail(b->err, MG_ERR_LIMIT, "prompt_too_large",
                            "a turn of more than %zu bytes of text", RUN_MAX);
    else if (!mg_buf_add(&b->run, s.data, s.n))
        b->status = mg_fail_memory(b->err, "prompt");
}

static void words(struct builder *b, const char *s) {
    text(b, (struct mg_slice){(const uint8_t *)s, strlen(s)});
}

static void flush(struct builder *b) {
    if (b->status != MG_OK || b->run.n == 0) return;
    b->status = mg_tokenizer_encode(b->tok, (const char *)b->run.data, b->run.n, false,
                                    &b->out->ids, b->err);
    b->run.n = 0;
}

/* A control token of the template. The tags around tools are ordinary text to a tokenizer that has
 * no tokens for them (nothing is to be guarded there); the others no conversation can miss. */
static void control(struct builder *b, enum control c) {
    if (b->status != MG_OK) return;
    if (b->id[c] < 0 && c >= TOOL_CALL) {
        words(b, control_text[c]);
        return;
    }
    flush(b);
    if (b->status != MG_OK) return;
    if (b->id[c] < 0)
        b->status = mg_fail(b->err, MG_ERR_FORMAT, "tokenizer_no_control",
                            "tokenizer.json has no added token %s", control_text[c]);
    else if (!mg_ids_add(&b->out->ids, b->id[c]))
        b->status = mg_fail_memory(b->err, "prompt");
}

static void image(struct builder *b, size_t n_token) {
    struct mg_prompt *out = b->out;
    control(b, VISION_START);
    control(b, IMAGE_PAD); /* the first of n_token */
    if (b->status != MG_OK) return;
    if (n_token == 0) {
        b->status = mg_fail(b->err, MG_ERR_ARGUMENT, "", "image %zu has no tokens", out->n_image);
        return;
    }
    out->image_at[out->n_image++] = out->ids.n - 1;
    if (n_token > INT32_MAX || !mg_ids_reserve(&out->ids, n_token - 1)) {
        b->status = mg_fail_memory(b->err, "prompt");
        return;
    }
    for (size_t i = 1; i < n_token; i++) out->ids.id[out->ids.n++] = b->id[IMAGE_PAD];
    control(b, VISION_END);
}

/* Texts and images of a turn. True when there was anything. */
static bool content(struct builder *b, const struct mg_turn *turn) {
    bool any = false;
    for (size_t i = 0; i < turn->n_part; i++) {
        const struct mg_part *p = &turn->part[i];
        if (p->kind == MG_PART_TEXT) {
            text(b, p->text);
            any |= p->text.n > 0;
        } else if (p->kind == MG_PART_IMAGE) {
            image(b, p->n_token);
            any = true;
        }
    }
    return any;
}

static void tool_calls(struct builder *b, const struct mg_turn *turn, bool any) {
    for (size_t i = 0; i < turn->n_part; i++) {
        const struct mg_part *p = &turn->part[i];
        if (p->kind != MG_PART_TOOL_CALL) continue;
        if (any) words(b, "\n");
        any = true;
        control(b, TOOL_CALL);
        words(b, "\n{\"name\": \"");
        text(b, p->name);
        words(b, "\", \"arguments\": ");
        text(b, p->text);
        words(b, "}\n");
        control(b, TOOL_CALL_END);
    }
}

/* The block that tells of the tools, at the end of the system turn. `lines`: mg_tool_json's. */
static void tool_block(struct builder *b, const struct mg_buf *lines) {
    words(b, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
             "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    text(b, (struct mg_slice){lines->data, lines->n});
    words(b, "\n</tools>\n\nFor each function call, return a json object with function name and "
             "arguments within ");
    control(b, TOOL_CALL);
    control(b, TOOL_CALL_END);
    words(b, " XML tags:\n");
    control(b, TOOL_CALL);
    words(b, "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n");
    control(b, TOOL_CALL_END);
}

static void open_turn(struct builder *b, const char *role) {
    control(b, IM_START);
    words(b, role);
}

static void close_turn(struct builder *b) {
    control(b, IM_END);
    words(b, "\n");
}

static void one_turn(struct builder *b, const struct mg_turn *turn, size_t n_turn, size_t i) {
    static const char *const role[] = {"system\n", "user\n", "assistant\n"};
    const struct mg_turn *t = &turn[i];
    if (t->role != MG_ROLE_TOOL) {
        open_turn(b, role[t->role]);
        bool any = content(b, t);
        tool_calls(b, t, any);
        close_turn(b);
        return;
    }
    if (i == 0 || turn[i - 1].role != MG_ROLE_TOOL) open_turn(b, "user");
    words(b, "\n");
    control(b, TOOL_RESPONSE);
    words(b, "\n");
    content(b, t);
    words(b, "\n");
    control(b, TOOL_RESPONSE_END);
    if (i + 1 == n_turn || turn[i + 1].role != MG_ROLE_TOOL) close_turn(b);
}

static void all_turns(struct builder *b, const struct mg_turn *turn, size_t n_turn,
                      const struct mg_buf *tools) {
    size_t i = 0;
    if (tools->n > 0) {
        open_turn(b, "system\n");
        if (turn[0].role == MG_ROLE_SYSTEM) {
            content(b, &turn[0]);
            words(b, "\n\n");
            i = 1;
        }
        tool_block(b, tools);
        close_turn(b);
    }
    for (; i < n_turn; i++) one_turn(b, turn, n_turn, i);
}

/* What the types allow but the template has no form for; also counts the images. */
static enum mg_status check(const struct mg_turn *turn, size_t n_turn, size_t *n_image,
                            struct mg_err *err) {
    *n_image = 0;
    if (n_turn == 0) return mg_fail(err, MG_ERR_ARGUMENT, "", "a prompt needs at least one turn");
    for (size_t i = 0; i < n_turn; i++) {
        if ((unsigned)turn[i].role > MG_ROLE_TOOL)
            return mg_fail(err, MG_ERR_ARGUMENT, "", "turn %zu has an unknown role", i);
        for (size_t k = 0; k < turn[i].n_part; k++) {
            enum mg_part_kind kind = turn[i].part[k].kind;
            *n_image += kind == MG_PART_IMAGE;
            if (kind == MG_PART_TOOL_CALL && turn[i].role != MG_ROLE_ASSISTANT)
                return mg_fail(err, MG_ERR_ARGUMENT, "",
                               "turn %zu: only an assistant's turn can call a tool", i);
        }
    }
    return MG_OK;
}

enum mg_status mg_prompt_build(const struct mg_tokenizer *tok, const struct mg_turn *turn,
                               size_t n_turn, struct mg_slice tools, bool open_answer,
                               struct mg_prompt *out, struct mg_err *err) {
    struct builder b = {.tok = tok, .out = out, .err = err};
    struct mg_buf lines = {.max = RUN_MAX};
    size_t n_image, n_tool;
    *out = (struct mg_prompt){0};
    b.status = check(turn, n_turn, &n_image, err);
    if (b.status == MG_OK && tools.n > 0) b.status = mg_tool_json(tools, &lines, &n_tool, err);
    if (b.status == MG_OK && n_image > 0) {
        out->image_at = mg_alloc(n_image, sizeof *out->image_at);
        if (!out->image_at) b.status = mg_fail_memory(err, "prompt");
    }
    for (size_t c = 0; c < N_CONTROL; c++) b.id[c] = mg_tokenizer_added(tok, control_text[c]);
    if (b.status == MG_OK) {
        all_turns(&b, turn, n_turn, &lines);
        if (open_answer) open_turn(&b, "assistant\n");
        flush(&b);
    }
    mg_buf_free(&lines);
    mg_buf_free(&b.run);
    if (b.status != MG_OK) mg_prompt_free(out);
    return b.status;
}

void mg_prompt_free(struct mg_prompt *p) {
    mg_ids_free(&p->ids);
    free(p->image_at);
    *p = (struct mg_prompt){0};
}
