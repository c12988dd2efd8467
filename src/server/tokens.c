/* server/tokens.c - /tokenize, /detokenize, /apply-template: text to tokens and back, and what a
 * conversation looks like to the model.
 */
#include "api/server_reply.h"
#include "api/token_request.h"
#include "server/internal.h"
#include "text/tokenizer.h"

#include <stdlib.h>

static void reply_out(struct work *w, struct mg_http_exchange *x) {
    if (w->f.err.status != MG_OK)
        reply_fault(x, &w->f);
    else
        mg_http_reply_take(x, 200, "application/json", &w->out);
}

/* What was written, or the fault that memory was short. */
static void check_written(struct work *w, bool ok) {
    if (!ok) mg_fault_memory(&w->f, "reply");
}

static void tokenize(struct work *w) {
    const struct mg_tokenizer *t = mg_engine_tokenizer(w->s->engine);
    struct mg_tokenize_request r;
    struct mg_ids ids = {0};
    if (mg_tokenize_request_parse((const char *)w->body.data, w->body.n, &r, &w->f) != MG_OK)
        return;
    if (mg_tokenizer_encode(t, r.text.data ? (char *)r.text.data : "", r.text.n, r.parse_special,
                            &ids, &w->f.err) == MG_OK) {
        struct mg_slice *piece = r.with_pieces ? mg_alloc(ids.n, sizeof *piece) : NULL;
        for (size_t i = 0; piece && i < ids.n; i++) piece[i] = mg_tokenizer_piece(t, ids.id[i]);
        check_written(w, (piece || !r.with_pieces) &&
                             mg_tokenize_write(&w->out, ids.id, piece, ids.n));
        free(piece);
    }
    mg_ids_free(&ids);
    mg_tokenize_request_free(&r);
}

void route_tokenize(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, tokenize, reply_out);
}

static void detokenize(struct work *w) {
    const struct mg_tokenizer *t = mg_engine_tokenizer(w->s->engine);
    struct mg_ids ids = {0};
    struct mg_buf text = {0};
    enum mg_status status =
        mg_detokenize_request_parse((const char *)w->body.data, w->body.n, &ids, &w->f);
    for (size_t i = 0; status == MG_OK && i < ids.n; i++)
        if ((size_t)ids.id[i] >= mg_tokenizer_n(t))
            status = mg_fault_set(&w->f, MG_ERR_ARGUMENT, "invalid_value", "tokens",
                                  "token %zu is not in the vocabulary", i + 1);
    if (status == MG_OK)
        check_written(w,
                      mg_tokenizer_decode(t, ids.id, ids.n, false, &text) &&
                          mg_detokenize_write(&w->out, text.data ? (char *)text.data : "", text.n));
    mg_buf_free(&text);
    mg_ids_free(&ids);
}

void route_detokenize(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, detokenize, reply_out);
}

/* Pictures stand as one placeholder: nothing is decoded here. */
static enum mg_status template_text(const struct mg_server *s, const struct mg_chat_request *r,
                                    struct mg_buf *out, struct mg_err *err) {
    mg_chat *chat = NULL;
    enum mg_status status = mg_chat_open(s->engine, &chat, err);
    for (size_t i = 0; i < r->n_message && status == MG_OK; i++) {
        const struct mg_chat_message *m = &r->message[i];
        status = mg_chat_begin_turn(chat, m->role, err);
        for (size_t k = 0; k < m->n_part && status == MG_OK; k++) {
            const struct mg_chat_part *p = &m->part[k];
            if (p->kind == MG_CHAT_TEXT)
                status = mg_chat_add_text_n(chat, m->role, p->text, p->n_text, err);
            else if (p->kind == MG_CHAT_IMAGE)
                status = mg_chat_add_image_mark(chat, m->role, err);
            else
                status = mg_fail(err, MG_ERR_UNSUPPORTED, "unsupported_value",
                                 "tool calls are not supported yet");
        }
    }
    if (status == MG_OK) status = mg_chat_prompt_text(chat, r->add_generation_prompt, out, err);
    mg_chat_close(chat);
    return status;
}

static void apply_template(struct work *w) {
    struct mg_chat_limits limits = {w->s->facts.max_image_bytes, w->s->facts.max_images};
    struct mg_buf text = {0};
    if (mg_chat_request_parse((const char *)w->body.data, w->body.n, &limits, &w->chat, &w->f) ==
            MG_OK &&
        template_text(w->s, w->chat, &text, &w->f.err) == MG_OK)
        check_written(w, mg_template_write(&w->out, (char *)text.data, text.n));
    mg_buf_free(&text);
}

void route_template(struct mg_http_exchange *x, void *user) {
    work_begin(user, x, apply_template, reply_out);
}
