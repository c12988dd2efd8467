/* text/tool_json.h - tool definitions as the chat template writes them. */
#ifndef MG_TEXT_TOOL_JSON_H
#define MG_TEXT_TOOL_JSON_H

#include "base/err.h"
#include "base/mem.h"

#define MG_TOOL_KEYS_MAX 1000 /* keys of one object */

/* Appends each element of the JSON array `tools` as one line, "\n" before it, spelled as Python's
 * json.dumps(x, ensure_ascii=False) spells it: ", " and ": " between, keys in their order, its
 * escapes and its numbers. *n_tool: how many. A key given twice in one object is MG_ERR_FORMAT, as
 * is anything that isn't JSON. */
enum mg_status mg_tool_json(struct mg_slice tools, struct mg_buf *out, size_t *n_tool,
                            struct mg_err *err);

#endif
