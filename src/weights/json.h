/* weights/json.h - private to src/weights: JSON files of a checkpoint, read with named limits, and
 * what the error texts about them need.
 *
 * jansson builds a tree of some 100 bytes a value, so a hostile file of a few MB could ask for
 * gigabytes. The text is therefore counted over first (depth, separators), in one pass without
 * memory, and only then parsed. safetensors headers don't come through here: they have a reader of
 * their own (safetensors.c).
 */
#ifndef MG_WEIGHTS_JSON_H
#define MG_WEIGHTS_JSON_H

#include "base/err.h"

#include <jansson.h>
#include <stddef.h>

/* Parses `text` (n bytes, UTF-8) whose outermost value must be an object. Duplicate keys, more than
 * `max_depth` levels of nesting and more than `max_values` commas and colons are refused. `file` is
 * named in errors. The caller owns *out (json_decref). */
enum mg_status mg_json_parse(const char *file, const char *text, size_t n, size_t max_depth,
                             size_t max_values, json_t **out, struct mg_err *err);

/* Text from a file made fit for an error message: at most cap - 1 bytes, cut between characters
 * with "..." at the end, control characters as '?'. Returns out. cap >= 8. */
const char *mg_text_clean(char *out, size_t cap, const char *s, size_t n);

/* "an integer", "0", "\"abc\"", "null", ... : what was found in a file, for an error message.
 * Returns out. */
const char *mg_json_found(char *out, size_t cap, const json_t *value);

#endif
