/* text/prompt.h - a conversation as token ids.
 *
 * ChatML as in docs/model.md. Only the template writes control tokens; everything a user, tool,
 * system or assistant turn contains is plain text, whatever it looks like. The text between two
 * control tokens is tokenised as one run ("user\n" + content), since the reference tokenises the
 * rendered prompt. An image is a structural part: vision_start, then `n_token` image placeholders,
 * then vision_end.
 *
 * Equal to Qwen3-VL-Instruct's chat template for every conversation that it has a form for. Two
 * kinds that it leaves out without a word are rendered here as docs/model.md says: a system turn
 * that isn't the first, and an image in a system or assistant turn. A turn's tool calls come behind
 * its texts, wherever they stand among the parts; tool turns in a row become one user turn.
 */
#ifndef MG_TEXT_PROMPT_H
#define MG_TEXT_PROMPT_H

#include "text/tokenizer.h"

enum mg_role { MG_ROLE_SYSTEM, MG_ROLE_USER, MG_ROLE_ASSISTANT, MG_ROLE_TOOL };

enum mg_part_kind { MG_PART_TEXT, MG_PART_IMAGE, MG_PART_TOOL_CALL };

struct mg_part {
    enum mg_part_kind kind;
    struct mg_slice text; /* TEXT: the text. TOOL_CALL: the call's JSON arguments. Borrowed */
    struct mg_slice name; /* TOOL_CALL: the function's name. Borrowed */
    size_t n_token;       /* IMAGE: placeholders */
};

struct mg_turn {
    enum mg_role role;
    const struct mg_part *part; /* n_part parts in order, borrowed */
    size_t n_part;
};

struct mg_prompt {
    struct mg_ids ids;
    /* Where each image's placeholders begin in ids, in order of the images; n_image of them. */
    size_t *image_at;
    size_t n_image;
};

/* tools: a JSON array of tool definitions (Qwen3 form) or n = 0; an empty array is no tools.
 * open_answer: end with the start of an assistant turn. Control tokens come from the tokenizer by
 * name; one that is missing is MG_ERR_FORMAT, but for <tool_call> and <tool_response>, which are
 * then plain text as in the reference. On failure `out` holds nothing. */
enum mg_status mg_prompt_build(const struct mg_tokenizer *tok, const struct mg_turn *turn,
                               size_t n_turn, struct mg_slice tools, bool open_answer,
                               struct mg_prompt *out, struct mg_err *err);
void mg_prompt_free(struct mg_prompt *p);

#endif
