/* cli/tokenize.c - margay tokenize: JSON strings in, token ids and the text decoded from them out,
 * line by line.
 *
 * Each line is answered before the next is read, so a program may hold a conversation with it.
 */
#include "cli/commands.h"

#include "base/io.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LINE_BYTES ((size_t)256 << 20)

static enum mg_status one_line(const struct mg_tokenizer *tok, bool special, const char *line,
                               size_t n, size_t number, struct mg_err *err) {
    json_error_t where;
    json_t *value = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    struct mg_ids ids = {0};
    struct mg_buf text = {.max = MAX_LINE_BYTES}, out = {.max = 4 * MAX_LINE_BYTES};
    struct mg_json j = {.out = &out};
    enum mg_status st = MG_OK;
    if (!json_is_string(value))
        st = mg_fail(err, MG_ERR_FORMAT, "line", "line %zu is not a JSON string%s%s", number,
                     value ? "" : ": ", value ? "" : where.text);
    if (!st)
        st = mg_tokenizer_encode(tok, json_string_value(value), json_string_length(value), special,
                                 &ids, err);
    if (!st && !mg_tokenizer_decode(tok, ids.id, ids.n, false, &text))
        st = mg_fail_memory(err, "text");
    if (!st) {
        mg_json_open(&j, '{');
        mg_json_key(&j, "ids"), mg_json_open(&j, '[');
        for (size_t i = 0; i < ids.n; i++) mg_json_int(&j, ids.id[i]);
        mg_json_close(&j, ']');
        mg_json_key(&j, "text"),
            mg_json_string(&j, text.data ? (const char *)text.data : "", text.n);
        mg_json_close(&j, '}');
        st = mg_buf_add_byte(&out, '\n') ? mg_write(STDOUT_FILENO, out.data, out.n, err)
                                         : mg_fail_memory(err, "JSON");
    }
    mg_buf_free(&out);
    mg_buf_free(&text);
    mg_ids_free(&ids);
    json_decref(value);
    return st;
}

enum mg_exit mg_cmd_tokenize(struct mg_options *o) {
    struct mg_err err = {0};
    struct mg_tokenizer *tok = NULL;
    const char *folder;
    bool demo;
    enum mg_status st = mg_session_folder(o, &folder, &demo, &err);
    if (!st && demo) mg_log(MG_LOG_WARN, "no model named: the demo model's tokenizer");
    if (!st) st = mg_tokenizer_open(folder, &tok, &err);
    bool special = mg_opt_flag(o, MG_OPT_SPECIAL, true);
    char *line = NULL;
    size_t cap = 0, number = 0;
    while (!st) {
        errno = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) {
            if (ferror(stdin)) st = mg_fail_errno(&err, "read", "standard input", errno);
            break;
        }
        number++;
        while (n && strchr("\r\n ", line[n - 1])) n--;
        if (n) st = one_line(tok, special, line, (size_t)n, number, &err);
    }
    free(line);
    mg_tokenizer_close(tok);
    return st ? mg_report(o, &err) : MG_EXIT_OK;
}
