/* api/stream_resume.c - see stream_resume.h. */
#include "api/stream_resume.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void mg_resume_free(struct mg_resume *r) {
    for (size_t i = 0; i < r->n_choice; i++) mg_buf_free(&r->choice[i].text);
    free(r->choice);
    mg_buf_free(&r->part);
    *r = (struct mg_resume){0};
}

bool mg_resume_is_whole(const struct mg_resume *r) {
    return r->part.n == 0;
}

static enum mg_status foreign(struct mg_err *err) {
    return mg_fail(err, MG_ERR_FORMAT, "answer_stream",
                   "an event stream that can't be gone on with");
}

static enum mg_status differs(struct mg_err *err) {
    return mg_fail(err, MG_ERR_NUMERIC, "answer_changed",
                   "the worker was lost, and another one answers differently from where it was; "
                   "temperature 0 on equal machines avoids this");
}

/* The choice of this index, NULL without memory or with an index that no request can have. */
static struct mg_resume_choice *choice_of(struct mg_resume *r, const json_t *value) {
    json_int_t i = json_integer_value(json_object_get(value, "index"));
    if (i < 0 || i >= MG_RESUME_CHOICES) return NULL;
    if ((size_t)i >= r->n_choice) {
        size_t n = (size_t)i + 1;
        struct mg_resume_choice *more = mg_realloc(r->choice, n, sizeof *more);
        if (!more) return NULL;
        memset(more + r->n_choice, 0, (n - r->n_choice) * sizeof *more);
        r->choice = more;
        r->n_choice = n;
    }
    return &r->choice[i];
}

/* Where a choice's text stands: in delta.content, or in text. *key: its name there. */
static json_t *text_of(json_t *choice, json_t **holder, const char **key) {
    json_t *delta = json_object_get(choice, "delta");
    *holder = delta ? delta : choice;
    *key = delta ? "content" : "text";
    json_t *text = json_object_get(*holder, *key);
    return json_is_string(text) ? text : NULL;
}

/* The list of a choice's log-probabilities, or NULL. */
static json_t *tokens_of(json_t *choice, const char **key) {
    json_t *l = json_object_get(choice, "logprobs");
    *key = "content";
    json_t *list = json_object_get(l, *key);
    return json_is_array(list) ? list : NULL;
}

/* The JSON of an event, NULL for comments and [DONE]. */
static enum mg_status parse(const char *event, size_t n, json_t **out, struct mg_err *err) {
    static const char data[] = "data: ";
    *out = NULL;
    if (n < sizeof data - 1 || memcmp(event, data, sizeof data - 1) != 0) return MG_OK;
    if (n >= 12 && memcmp(event, "data: [DONE]", 12) == 0) return MG_OK;
    *out = json_loadb(event + sizeof data - 1, n - (sizeof data - 1), JSON_ALLOW_NUL, NULL);
    return *out ? MG_OK : foreign(err);
}

static enum mg_status learn_event(struct mg_resume *r, const char *event, size_t n,
                                  struct mg_err *err) {
    json_t *root, *value;
    size_t i;
    enum mg_status st = parse(event, n, &root, err);
    if (!root) return st;
    r->learnt = true;
    if (json_is_object(json_object_get(root, "usage"))) r->usage = true;
    json_array_foreach(json_object_get(root, "choices"), i, value) {
        json_t *holder;
        const char *key;
        struct mg_resume_choice *c = choice_of(r, value);
        json_t *text = text_of(value, &holder, &key);
        if (!c ||
            (text && !mg_buf_add(&c->text, json_string_value(text), json_string_length(text)))) {
            st = mg_fail_memory(err, "answer");
            break;
        }
        c->sent = true;
        c->n_token += json_array_size(tokens_of(value, &key));
        if (json_is_string(json_object_get(value, "finish_reason"))) c->finished = true;
    }
    json_decref(root);
    return st;
}

/* Takes off a choice what the client has; *fresh: something is left. */
static enum mg_status cut_choice(struct mg_resume *r, json_t *value, bool *fresh,
                                 struct mg_err *err) {
    json_t *holder;
    const char *key, *token_key;
    struct mg_resume_choice *c = choice_of(r, value);
    if (!c) return foreign(err);
    json_t *text = text_of(value, &holder, &key), *token = tokens_of(value, &token_key);
    size_t n = text ? json_string_length(text) : 0, left = c->text.n - c->at;
    size_t same = mg_min_size(n, left);
    if (same && memcmp(c->text.data + c->at, json_string_value(text), same) != 0)
        return differs(err);
    c->at += same;
    while (token && c->at_token < c->n_token && json_array_size(token)) {
        json_array_remove(token, 0);
        c->at_token++;
    }
    if (same && json_object_set_new(holder, key,
                                    json_stringn(json_string_value(text) + same, n - same)) != 0)
        return differs(err); /* cut within a character: no two equal answers are */
    bool ends = json_is_string(json_object_get(value, "finish_reason"));
    if (ends && c->at < c->text.n) return differs(err);
    *fresh = n > same || (token && json_array_size(token) && c->at == c->text.n) ||
             (ends && !c->finished) || !c->sent;
    c->sent = true;
    return MG_OK;
}

static enum mg_status feed_event(struct mg_resume *r, const char *event, size_t n,
                                 struct mg_buf *out, struct mg_err *err) {
    json_t *root, *value;
    size_t i;
    bool fresh = false;
    enum mg_status st = parse(event, n, &root, err);
    if (st) return st;
    if (!root) { /* a comment, or the end */
        bool end = event[0] == 'd';
        return !end || mg_buf_add(out, event, n) ? MG_OK : mg_fail_memory(err, "answer");
    }
    json_t *choices = json_object_get(root, "choices");
    if (json_object_get(root, "error")) fresh = true;
    if (json_array_size(choices) == 0 && json_is_object(json_object_get(root, "usage")))
        fresh = !r->usage;
    json_array_foreach(choices, i, value) {
        bool one = false;
        st = cut_choice(r, value, &one, err);
        if (st) break;
        fresh = fresh || one;
    }
    if (!st && fresh) {
        char *line = json_dumps(root, JSON_COMPACT);
        bool ok = line && mg_buf_add_str(out, "data: ") && mg_buf_add_str(out, line) &&
                  mg_buf_add_str(out, "\n\n");
        free(line);
        if (!ok) st = mg_fail_memory(err, "answer");
    }
    json_decref(root);
    return st;
}

/* The next whole event of `part` behind `at`: its bytes, 0 when there is none. */
static size_t event_at(const struct mg_buf *part, size_t at) {
    const uint8_t *end = part->n - at > 1 ? memmem(part->data + at, part->n - at, "\n\n", 2) : NULL;
    return end ? (size_t)(end - (part->data + at)) + 2 : 0;
}

static void drop_front(struct mg_buf *b, size_t n) {
    if (n) memmove(b->data, b->data + n, b->n - n);
    b->n -= n;
}

enum mg_status mg_resume_learn(struct mg_resume *r, const void *data, size_t n,
                               struct mg_err *err) {
    enum mg_status st = MG_OK;
    size_t at = 0;
    if (!mg_buf_add(&r->part, data, n)) return mg_fail_memory(err, "answer");
    for (size_t m; !st && (m = event_at(&r->part, at)) > 0; at += m)
        st = learn_event(r, (const char *)r->part.data + at, m, err);
    drop_front(&r->part, at);
    return st;
}

enum mg_status mg_resume_feed(struct mg_resume *r, const void *data, size_t n, struct mg_buf *out,
                              struct mg_err *err) {
    enum mg_status st = MG_OK;
    size_t at = 0;
    if (!mg_buf_add(&r->part, data, n)) return mg_fail_memory(err, "answer");
    for (size_t m; !st && (m = event_at(&r->part, at)) > 0; at += m) {
        const char *event = (const char *)r->part.data + at;
        if (r->learnt)
            st = feed_event(r, event, m, out, err);
        else if (!mg_buf_add(out, event, m))
            st = mg_fail_memory(err, "answer");
    }
    drop_front(&r->part, at);
    return st;
}
