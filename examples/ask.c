/* examples/ask.c - asks a model about a picture through the public API, and prints the answer as it
 * comes.
 *
 *     ask FOLDER PICTURE "QUESTION"
 */
#include "margay/margay.h"

#include <stdio.h>

/* Called for each piece of the answer and for progress; returning false would stop the answer. */
static bool print_event(void *user, const struct mg_event *event) {
    FILE *to = user;
    if (event->kind == MG_EVENT_TEXT) fputs(event->text, to);
    fflush(to);
    return true;
}

static int fail(const struct mg_err *err) {
    fprintf(stderr, "ask: %s\n", err->text);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: ask FOLDER PICTURE \"QUESTION\"\n");
        return 2;
    }
    struct mg_err err = {0};
    mg_engine *engine = NULL;
    mg_chat *chat = NULL;
    struct mg_answer answer;
    int code = 0;
    if (mg_engine_open(argv[1], NULL, &engine, &err) || mg_chat_open(engine, &chat, &err) ||
        mg_chat_add_image_file(chat, argv[2], &err) ||
        mg_chat_add_text(chat, MG_USER, argv[3], &err) ||
        mg_chat_answer(chat, NULL, print_event, stdout, &answer, &err)) {
        code = fail(&err);
    } else {
        struct mg_image_report picture;
        mg_chat_image(chat, 0, &picture);
        printf("\n");
        fprintf(stderr,
                "ask: %s of %u x %u, %zu tokens; %zu tokens in, %zu out, first after %.0f ms\n",
                picture.format, picture.width, picture.height, picture.tokens, answer.prompt_tokens,
                answer.n_token, answer.first_token_ms);
    }
    mg_chat_close(chat);
    mg_engine_close(engine);
    return code;
}
