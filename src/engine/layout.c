/* engine/layout.c - a conversation as prompt ids, picture places and positions. */
#include "engine/internal.h"

#include <stdlib.h>

static enum mg_role role_of(enum mg_chat_role role) {
    switch (role) {
    case MG_SYSTEM: return MG_ROLE_SYSTEM;
    case MG_ASSISTANT: return MG_ROLE_ASSISTANT;
    case MG_TOOL: return MG_ROLE_TOOL;
    default: return MG_ROLE_USER;
    }
}

/* The turns with their parts as the prompt builder wants them; parts of all turns in one array. */
static void fill_turns(const struct mg_chat *chat, struct mg_turn *turn, struct mg_part *part) {
    for (size_t i = 0; i < chat->n_turn; i++) {
        const struct chat_turn *t = &chat->turn[i];
        turn[i] = (struct mg_turn){.role = role_of(t->role), .part = part, .n_part = t->n_part};
        for (size_t j = 0; j < t->n_part; j++, part++) {
            const struct chat_part *p = &t->part[j];
            if (p->is_image)
                *part = (struct mg_part){.kind = MG_PART_IMAGE,
                                         .n_token = chat->image[p->image].n_token};
            else
                *part =
                    (struct mg_part){.kind = MG_PART_TEXT,
                                     .text = {t->text.data ? t->text.data + p->at : NULL, p->n}};
        }
    }
}

static enum mg_status build_prompt(const struct mg_chat *chat, struct mg_prompt *out,
                                   struct mg_err *err) {
    if (chat->raw) {
        const struct mg_buf *text = &chat->turn[0].text;
        *out = (struct mg_prompt){0};
        enum mg_status made =
            mg_tokenizer_encode(chat->engine->tokenizer, text->data ? (char *)text->data : "",
                                text->n, false, &out->ids, err);
        if (made == MG_OK && !out->ids.n)
            made = mg_fail(err, MG_ERR_ARGUMENT, "empty_prompt", "the prompt is empty");
        if (made != MG_OK) mg_prompt_free(out);
        return made;
    }
    size_t n_part = 0;
    for (size_t i = 0; i < chat->n_turn; i++) n_part += chat->turn[i].n_part;
    struct mg_turn *turn = mg_alloc(chat->n_turn, sizeof *turn);
    struct mg_part *part = mg_alloc(n_part, sizeof *part);
    enum mg_status status;
    if (turn && part) {
        fill_turns(chat, turn, part);
        status = mg_prompt_build(chat->engine->tokenizer, turn, chat->n_turn, (struct mg_slice){0},
                                 true, out, err);
    } else {
        status = mg_fail_memory(err, "prompt");
    }
    free(turn);
    free(part);
    return status;
}

/* Pictures stand in the prompt in the order of the parts, which is the order of chat->image. */
static void place_tokens(const struct mg_chat *chat, struct layout *l) {
    size_t merge = chat->engine->patch_config.merge, image = 0;
    int32_t next = 0;
    for (size_t i = 0; i < l->n;) {
        if (image >= l->prompt.n_image || i != l->prompt.image_at[image]) {
            for (size_t axis = 0; axis < 3; axis++) l->pos[i][axis] = next;
            l->image[i] = -1;
            l->offset[i++] = 0;
            next++;
            continue;
        }
        const struct chat_image *p = &chat->image[image];
        size_t across = p->grid_w / merge, down = p->grid_h / merge;
        for (size_t k = 0; k < p->n_token; k++, i++) {
            size_t cell = p->kept.index ? p->kept.index[k] : k;
            l->pos[i][0] = next;
            l->pos[i][1] = next + (int32_t)(cell / across);
            l->pos[i][2] = next + (int32_t)(cell % across);
            l->image[i] = (int32_t)image;
            l->offset[i] = (uint32_t)k;
        }
        next += (int32_t)mg_max_size(across, down);
        l->n_image_token += p->n_token;
        image++;
    }
    l->next_pos = next;
}

enum mg_status mg_layout_make(const struct mg_chat *chat, struct layout *out, struct mg_err *err) {
    *out = (struct layout){0};
    enum mg_status status = build_prompt(chat, &out->prompt, err);
    if (status != MG_OK) return status;
    out->n = out->prompt.ids.n;
    out->pos = mg_alloc(out->n, sizeof *out->pos);
    out->image = mg_alloc(out->n, sizeof *out->image);
    out->offset = mg_alloc(out->n, sizeof *out->offset);
    if (!out->pos || !out->image || !out->offset) {
        mg_layout_free(out);
        return mg_fail_memory(err, "prompt");
    }
    place_tokens(chat, out);
    return MG_OK;
}

enum mg_status mg_chat_prompt_text(const mg_chat *chat, struct mg_buf *out, struct mg_err *err) {
    struct mg_prompt prompt;
    enum mg_status status = build_prompt(chat, &prompt, err);
    if (status != MG_OK) return status;
    bool ok = mg_tokenizer_decode(chat->engine->tokenizer, prompt.ids.id, prompt.ids.n, false, out);
    mg_prompt_free(&prompt);
    return ok ? MG_OK : mg_fail_memory(err, "prompt");
}

void mg_layout_free(struct layout *l) {
    mg_prompt_free(&l->prompt);
    free(l->pos);
    free(l->image);
    free(l->offset);
    *l = (struct layout){0};
}

int64_t mg_layout_identity(const struct layout *l, size_t i) {
    if (l->image[i] < 0) return l->prompt.ids.id[i];
    return -1 - ((int64_t)l->image[i] << 32 | l->offset[i]);
}

struct mg_row mg_layout_row(const struct mg_chat *chat, const struct layout *l, size_t i) {
    struct mg_row row = {.id = l->prompt.ids.id[i],
                         .pos = {l->pos[i][0], l->pos[i][1], l->pos[i][2]}};
    if (l->image[i] >= 0) {
        const struct mg_picture *p = &chat->image[l->image[i]].picture;
        row.feature = p->row + (size_t)l->offset[i] * p->width;
        row.map_stride = p->n_token * p->width;
        row.n_map = p->n_map;
    }
    return row;
}
