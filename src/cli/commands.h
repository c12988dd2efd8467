/* cli/commands.h - one function per command; each returns the process' exit code and never exits
 * itself. */
#ifndef MG_CLI_COMMANDS_H
#define MG_CLI_COMMANDS_H

#include "cli/json.h"
#include "cli/session.h"

enum mg_exit mg_cmd_ask(struct mg_options *o);
enum mg_exit mg_cmd_chat(struct mg_options *o);
enum mg_exit mg_cmd_serve(struct mg_options *o);
enum mg_exit mg_cmd_worker(struct mg_options *o);
enum mg_exit mg_cmd_trace(struct mg_options *o);
enum mg_exit mg_cmd_tokenize(struct mg_options *o);
enum mg_exit mg_cmd_convert(struct mg_options *o);
enum mg_exit mg_cmd_pull(struct mg_options *o);
enum mg_exit mg_cmd_bench(struct mg_options *o);
enum mg_exit mg_cmd_doctor(struct mg_options *o);
enum mg_exit mg_cmd_load(struct mg_options *o);
enum mg_exit mg_cmd_health(struct mg_options *o);
enum mg_exit mg_cmd_help(struct mg_options *o);
enum mg_exit mg_cmd_version(struct mg_options *o);
enum mg_exit mg_cmd_completion(struct mg_options *o);

/* Text for people, made from the option table; false when memory is short. command -1: the
 * overview. */
bool mg_help_text(int command, struct mg_buf *out);
bool mg_help_man(struct mg_buf *out);
bool mg_help_completion(const char *shell, struct mg_buf *out);
/* Writes a buffer to stdout and frees it. */
enum mg_exit mg_print(struct mg_options *o, struct mg_buf *text);

/* The folder mode of ask: the same question about every picture in --folder. */
enum mg_exit mg_ask_folder(struct mg_options *o, const char *question, size_t n_question);

/* Members of ask --json: text, token_ids, finish_reason, usage, timings, images; the object is the
 * caller's. */
void mg_json_answer(struct mg_json *j, const mg_chat *chat, const struct mg_answer *answer);

#endif
