/* What the tests of src/text share: recorded data from tests/data/text, unpacked. */
#ifndef TEST_TEXT_SUPPORT_H
#define TEST_TEXT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>

#include "text/tokenizer.h"

/* The unpacked file, at most 32 MiB; the test fails when it isn't there. */
struct mg_buf unpack(const char *path);

/* The published tokenizer, loaded once. */
const struct mg_tokenizer *real_tokenizer(void);
void real_tokenizer_close(void);

/* Calls `each` with every line of a packed .jsonl file, parsed; returns how many there were. */
size_t for_each_line(const char *path, void (*each)(json_t *line, size_t number));

/* Ids as a JSON array has them. */
struct mg_ids ids_of(json_t *array);
void assert_ids(const struct mg_ids *got, json_t *want, size_t number);

#endif
