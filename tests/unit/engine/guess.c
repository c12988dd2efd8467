/* Drafts (engine/draft.h) change no answer: with and without them the same tokens, text, end and
 * keys and values, whatever ends the answer, and the next question is answered alike. Packed, and
 * in the float modes too, whose products of up to 8 rows have the same bits.
 */
#include "tiny.h"
#include "weights/convert.h"
#include "weights/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_SAID 700
#define SAMPLE DEMO "/samples/receipt_total_001.png"

static const int drafts[] = {-1, 1, 2, 7, 0, 15}; /* the first is what all are compared with */
#define N_DRAFT (sizeof drafts / sizeof *drafts)

/* An answer, copied out of the conversation. */
struct told {
    int32_t id[MAX_SAID];
    size_t n, n_text, n_stream, prompt, accepted, drafted, passes;
    char text[8 * MAX_SAID], stream[8 * MAX_SAID];
    const char *finish, *detail;
};

static bool on_event(void *user, const struct mg_event *event) {
    struct told *t = user;
    if (event->kind != MG_EVENT_TEXT) return true;
    assert_true(t->n_stream + event->n_text < sizeof t->stream);
    memcpy(t->stream + t->n_stream, event->text, event->n_text);
    t->n_stream += event->n_text;
    return true;
}

static void answer(mg_chat *chat, const struct mg_answer_options *o, struct told *t) {
    struct mg_answer a;
    struct mg_err err = {0};
    t->n_stream = 0;
    if (mg_chat_answer(chat, o, on_event, t, &a, &err) != MG_OK) fail_msg("%s", err.text);
    assert_true(a.n_token <= MAX_SAID && a.n_text < sizeof t->text);
    t->n = a.n_token;
    memcpy(t->id, a.token, a.n_token * sizeof *t->id);
    t->n_text = a.n_text;
    memcpy(t->text, a.text, a.n_text + 1);
    t->finish = a.finish_reason;
    t->detail = a.stop_detail;
    t->prompt = a.prompt_tokens;
    t->accepted = a.accepted_tokens;
    t->drafted = a.drafted_tokens;
    t->passes = a.passes;
    assert_true(a.accepted_tokens <= a.drafted_tokens);
}

static void same_told(const struct told *a, const struct told *b, int draft) {
    size_t i = 0;
    while (i < a->n && i < b->n && a->id[i] == b->id[i]) i++;
    if (i < a->n || a->n != b->n)
        fail_msg("draft %d: %zu tokens instead of %zu, the first other one is %zu", draft, b->n,
                 a->n, i);
    assert_string_equal(a->finish, b->finish);
    assert_string_equal(a->detail ? a->detail : "", b->detail ? b->detail : "");
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->n_stream, a->n_text);
    assert_int_equal(b->n_stream, b->n_text);
    assert_memory_equal(b->stream, b->text, b->n_text);
    assert_int_equal(a->prompt, b->prompt);
}

/* Keys and values of all tokens, in every bit, and which tokens they are. */
static void same_kv(const mg_chat *a, const mg_chat *b, int draft) {
    const struct mg_kv *x = &a->kv, *y = &b->kv;
    size_t size = mg_dtype_size(x->type);
    if (x->n != y->n || a->next_pos != b->next_pos)
        fail_msg("draft %d: %zu tokens are kept, %zu without drafts", draft, y->n, x->n);
    assert_memory_equal(a->kv_id, b->kv_id, x->n * sizeof *a->kv_id);
    for (size_t i = 0; i < x->n_layer * x->n_head; i++) {
        size_t at = i % x->n_head * x->head_stride * size, layer = i / x->n_head;
        const char *kx = (char *)mg_kv_keys(x, layer) + at,
                   *vx = (char *)mg_kv_values(x, layer) + at;
        const char *ky = (char *)mg_kv_keys(y, layer) + at,
                   *vy = (char *)mg_kv_values(y, layer) + at;
        for (size_t p = 0; p < x->n; p++)
            for (size_t j = 0; j < x->head_dim; j++) {
                size_t k = mg_kv_key_place(x->type, x->head_dim, p, j) * size;
                size_t v = mg_kv_value_place(x->type, x->head_dim, p, j) * size;
                if (memcmp(kx + k, ky + k, size) || memcmp(vx + v, vy + v, size))
                    fail_msg("draft %d: layer %zu, token %zu of %zu: other keys or values", draft,
                             layer, p, x->n);
            }
    }
}

/* A conversation of two questions, the first ended as `o` says, with every draft setting; gives
 * what was accepted in all. */
static struct told told[2][2];
static size_t check(mg_engine *e, const char *image, const char *question,
                    const struct mg_answer_options *o) {
    mg_chat *chat[2] = {NULL};
    size_t accepted = 0;
    for (size_t d = 0; d < N_DRAFT; d++) {
        struct mg_answer_options with = *o;
        size_t at = d > 0;
        with.draft = drafts[d];
        chat[at] = tiny_chat(e);
        if (image) tiny_image(chat[at], image);
        tiny_text(chat[at], MG_USER, question);
        answer(chat[at], &with, &told[at][0]);
        if (d) {
            same_told(&told[0][0], &told[1][0], drafts[d]);
            same_kv(chat[0], chat[1], drafts[d]);
        }
        if (d == 0) continue; /* its second question last, since the comparison needs its state */
        with.stop = NULL;
        with.n_stop = 0;
        with.max_tokens = 24;
        tiny_text(chat[1], MG_USER, question);
        answer(chat[1], &with, &told[1][1]);
        struct mg_answer_options without = with;
        without.draft = -1;
        mg_chat *again = tiny_chat(e);
        struct mg_answer_options first = *o;
        first.draft = -1;
        if (image) tiny_image(again, image);
        tiny_text(again, MG_USER, question);
        answer(again, &first, &told[0][1]);
        tiny_text(again, MG_USER, question);
        answer(again, &without, &told[0][1]);
        same_told(&told[0][1], &told[1][1], drafts[d]);
        same_kv(again, chat[1], drafts[d]);
        accepted += told[1][0].accepted + told[1][1].accepted;
        mg_chat_close(again);
        mg_chat_close(chat[1]);
    }
    mg_chat_close(chat[0]);
    return accepted;
}

/* The small checkpoint's answers soon repeat themselves, so that drafts are right in the middle of
 * them: ends there by number, by stop string, by the context, by the loop check. */
static void check_ends(const struct tiny *t) {
    struct tiny o = *t;
    o.context = 420;
    mg_engine *e = tiny_engine(&o);
    struct mg_answer_options a;
    static struct told whole;
    size_t accepted = 0;
    mg_answer_options_init(&a);
    a.ignore_end = a.no_loop_check = true;
    for (a.max_tokens = 1; a.max_tokens < 70; a.max_tokens += a.max_tokens < 8 ? 1 : 13)
        accepted += check(e, "shapes.png", "how many circles?", &a);
    assert_true(accepted > 0);
    a.max_tokens = 64;
    a.draft = -1;
    mg_chat *chat = tiny_chat(e);
    tiny_image(chat, "shapes.png");
    tiny_text(chat, MG_USER, "how many circles?");
    answer(chat, &a, &whole);
    mg_chat_close(chat);
    for (size_t from = 20; from < 44; from += 3) { /* strings of the answer's own tokens */
        char stop[64] = "";
        size_t n = 0;
        for (size_t i = from; i < whole.n && n < 6; i++) {
            struct mg_slice piece = mg_tokenizer_piece(e->tokenizer, whole.id[i]);
            if (n + piece.n >= sizeof stop) break;
            memcpy(stop + n, piece.data, piece.n);
            n += piece.n;
        }
        const char *list[] = {"never said", stop};
        stop[n] = 0;
        if (!n || strlen(stop) != n || !strstr(whole.text, stop)) continue;
        a.stop = list;
        a.n_stop = 2;
        check(e, "shapes.png", "how many circles?", &a);
        assert_string_equal(told[0][0].detail, "stop_string");
    }
    a.stop = NULL;
    a.n_stop = 0;
    a.max_tokens = 600;
    a.no_loop_check = false; /* a loop's end, or the context's */
    mg_chat *far[2] = {tiny_chat(e), tiny_chat(e)};
    for (int kind = 0; kind < 2; kind++, a.no_loop_check = true)
        for (size_t d = 0; d < N_DRAFT; d++) {
            mg_chat_close(far[d > 0]);
            far[d > 0] = tiny_chat(e);
            tiny_text(far[d > 0], MG_USER, "how many circles?");
            a.draft = drafts[d];
            answer(far[d > 0], &a, &told[d > 0][0]);
            if (d) same_told(&told[0][0], &told[1][0], drafts[d]);
            if (d) same_kv(far[0], far[1], drafts[d]);
            if (kind) assert_int_equal(told[0][0].prompt + told[0][0].n, 420);
        }
    mg_chat_close(far[0]);
    mg_chat_close(far[1]);
    mg_engine_close(e);
}

static void test_ends_int8(void **state) {
    (void)state;
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_INT8, .tier = "avx2"});
}

static void test_ends_int4(void **state) {
    (void)state;
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_INT4});
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_INT4, .tier = "avx2", .chunk = 7});
}

static void test_ends_float(void **state) {
    (void)state;
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_BF16});
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_F32});
    check_ends(&(struct tiny){.weights = MG_WEIGHTS_BF16, .tier = "avx2"});
}

/* A packed file of bf16 matrices multiplies as the folder does: up to 8 rows alike, no more. */
static void test_ends_bf16_file(void **state) {
    (void)state;
    struct mg_convert_options o = {.weights = MG_FILE_BF16};
    struct mg_err err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_path("bf16.safetensors"));
    if (mg_convert_file(TINY, path, &o, NULL, &err) != MG_OK) fail_msg("%s", err.text);
    check_ends(&(struct tiny){.model = path});
}

static size_t (*plain_tasks)(const struct mg_matmul *op);
static size_t (*packed_tasks)(const struct mg_packed_matmul *op);
static size_t most_plain, most_packed; /* rows of a product */
static size_t spy_plain(const struct mg_matmul *op) {
    most_plain = mg_max_size(most_plain, op->m);
    return plain_tasks(op);
}
static size_t spy_packed(const struct mg_packed_matmul *op) {
    most_packed = mg_max_size(most_packed, op->m);
    return packed_tasks(op);
}

#define CIRCLE 50 /* tokens, none of them special */

/* A model that says 0, 1, ... CIRCLE - 1 again and again: what attention and MLP add is nothing,
 * and the head's row of a token is the embedding of the one before it. Gives the new arrays. */
static void say_in_circles(mg_engine *e, void *own[4]) {
    const struct mg_text_config *c = &e->model->config.text;
    struct mg_linear *head = &e->model->head;
    size_t n = c->n_vocab, k = c->hidden, panels = (n + MG_PANEL - 1) / MG_PANEL;
    size_t bytes = mg_packed_panel_bytes(MG_PACK_INT8, k);
    float *row = own[0] = mg_alloc_zero(n, k * sizeof(float)), *scale;
    uint8_t *data = own[1] = mg_alloc_zero(panels, bytes);
    int32_t *sum = own[2] = mg_alloc_zero(panels * MG_PANEL, sizeof *sum);
    scale = own[3] = mg_alloc_zero(mg_max_size(c->ffn * k, panels * MG_PANEL), sizeof *scale);
    assert_true(row && data && sum && scale && c->n_head * c->head_dim <= c->ffn);
    for (size_t i = 0; i < CIRCLE; i++)
        mg_model_embed(e->model, &e->kernels, (int32_t)i, row + (i + 1) % CIRCLE * k);
    for (size_t i = 0; i < c->n_layer; i++) { /* before the head's scales are there */
        struct mg_linear *l[] = {&e->model->layer[i].o, &e->model->layer[i].down};
        for (int j = 0; j < 2; j++) {
            l[j]->type = MG_F32;
            if (mg_linear_is_packed(l[j]))
                l[j]->packed.scale = own[3];
            else
                l[j]->w = own[3];
        }
    }
    if (!mg_linear_is_packed(head)) {
        head->w = row;
        head->type = MG_F32;
        return;
    }
    scale = own[0] = mg_realloc(row, n * k + panels * MG_PANEL, sizeof *row);
    assert_non_null(scale);
    row = own[0];
    scale = row + n * k;
    for (size_t p = 0; p < panels; p++) {
        const float *in[MG_PANEL] = {NULL};
        double error[2] = {0};
        for (size_t i = 0; i < MG_PANEL && p * MG_PANEL + i < n; i++)
            in[i] = row + (p * MG_PANEL + i) * k;
        assert_true(mg_pack_panel(MG_PACK_INT8, in, k, data + p * bytes, scale + p * MG_PANEL,
                                  sum + p * MG_PANEL, error));
    }
    assert_int_equal(head->packed.kind, MG_PACK_INT8);
    head->packed.data = data;
    head->packed.scale = scale;
    head->packed.sum = sum;
}

/* A model that says the same for ever makes the longest drafts, all right: the products have no
 * more rows than have the same bits as one. */
static void check_rows(const struct tiny *t, size_t limit) {
    mg_engine *e = tiny_engine(t);
    void *own[4];
    say_in_circles(e, own);
    plain_tasks = e->kernels.matmul_tasks;
    packed_tasks = e->kernels.packed_tasks;
    e->kernels.matmul_tasks = spy_plain;
    e->kernels.packed_tasks = spy_packed;
    struct mg_answer_options a;
    mg_answer_options_init(&a);
    a.max_tokens = 300;
    a.ignore_end = a.no_loop_check = true;
    for (int draft = 0; draft <= 15; draft += 15) {
        mg_chat *chat = tiny_chat(e);
        tiny_text(chat, MG_USER, "a");
        tiny_read(chat, 0);
        mg_kv_cut(&chat->kv, chat->kv.n - 1); /* all but the last, so that the prompt is one row */
        most_plain = most_packed = 0;
        a.draft = draft;
        answer(chat, &a, &told[0][0]);
        for (size_t i = 2; i < told[0][0].n; i++)
            assert_int_equal(told[0][0].id[i], (told[0][0].id[i - 1] + 1) % CIRCLE);
        assert_int_equal(mg_max_size(most_plain, most_packed),
                         draft ? limit : mg_min_size(limit, 9));
        assert_true(told[0][0].passes < 150);
        mg_chat_close(chat);
    }
    mg_engine_close(e);
    for (int i = 0; i < 4; i++) free(own[i]);
}

static void test_rows(void **state) {
    (void)state;
    check_rows(&(struct tiny){.weights = MG_WEIGHTS_INT8}, 16);
    check_rows(&(struct tiny){.weights = MG_WEIGHTS_INT4}, 16);
    check_rows(&(struct tiny){.weights = MG_WEIGHTS_BF16}, 8);
    check_rows(&(struct tiny){.weights = MG_WEIGHTS_F32}, 8);
    check_rows(&(struct tiny){.model = tiny_path("bf16.safetensors")}, 8);
}

/* Real answers: asked the same thing again, the model says the same, and most of it is guessed;
 * the end token comes behind an accepted draft. */
static void test_demo(void **state) {
    (void)state;
    static const enum mg_weight_mode mode[] = {MG_WEIGHTS_INT8, MG_WEIGHTS_INT4, MG_WEIGHTS_BF16};
    for (size_t w = 0; w < 3; w++) {
        mg_engine *e = tiny_engine(&(struct tiny){.model = DEMO, .weights = mode[w]});
        struct mg_answer_options a;
        mg_answer_options_init(&a);
        size_t accepted = check(e, SAMPLE, "What is the total price?", &a);
        assert_string_equal(told[0][0].detail, "end_token");
        assert_string_equal(told[1][1].detail, "end_token");
        assert_memory_equal(told[1][0].id, told[1][1].id, told[1][0].n * sizeof(int32_t));
        assert_true(accepted > 0 && told[1][1].accepted > 0);
        assert_true(told[1][1].passes < told[1][1].n);
        accepted = check(e, DEMO "/samples/ocr_line_001.png", "What does it say?", &a);
        assert_true(accepted > 0);
        mg_engine_close(e);
    }
}

/* Where the likeliest token is not what is said, nothing is guessed, and the setting is no matter.
 */
static void test_sampling(void **state) {
    (void)state;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8});
    for (int kind = 0; kind < 4; kind++) {
        struct mg_answer_options a;
        mg_answer_options_init(&a);
        a.max_tokens = 40;
        a.ignore_end = a.no_loop_check = true;
        a.seed = 7;
        if (kind == 0) a.temperature = 0.8f;
        if (kind == 1) a.repetition_penalty = 1.2f;
        if (kind == 2) a.presence_penalty = 0.5f;
        if (kind == 3) a.frequency_penalty = 0.5f;
        assert_int_equal(check(e, NULL, "one two three one two three", &a), 0);
        assert_int_equal(told[1][1].drafted, 0);
    }
    mg_engine_close(e);
}

/* Plain C gains nothing by more rows: no drafts there. */
static void test_ref(void **state) {
    (void)state;
    mg_engine *e = tiny_engine(&(struct tiny){.weights = MG_WEIGHTS_INT8, .tier = "ref"});
    struct mg_answer_options a;
    mg_answer_options_init(&a);
    a.max_tokens = 24;
    a.ignore_end = a.no_loop_check = true;
    check(e, NULL, "one two three one two three", &a);
    assert_int_equal(told[1][0].drafted + told[1][1].drafted, 0);
    mg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_int8),  cmocka_unit_test(test_ends_int4),
        cmocka_unit_test(test_ends_float), cmocka_unit_test(test_ends_bf16_file),
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_demo),
        cmocka_unit_test(test_sampling),   cmocka_unit_test(test_ref)};
    return cmocka_run_group_tests_name("engine.guess", tests, tiny_open, tiny_close);
}
