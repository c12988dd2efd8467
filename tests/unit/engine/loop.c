/* The loop detector (row 35 of the known faults): tables pass whole, loops stop soon. Texts are cut
 * into pieces as the model's tokenizer cuts them: words with the blank before them, single digits,
 * line ends and punctuation apart. */
#include "engine/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pieces get ids by a hash of their bytes. */
static int32_t id_of(const char *s, size_t n) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)s[i]) * 16777619u;
    return (int32_t)(h & 0x7FFFFFFF);
}

static size_t piece_size(const char *s) {
    size_t n = s[0] == ' ';
    if (isalpha((unsigned char)s[n])) {
        while (isalpha((unsigned char)s[n])) n++;
        return n;
    }
    if (s[0] == '.' && s[1] == '\n') return 2; /* one token in the real vocabulary */
    if (isdigit((unsigned char)s[n]) && n) return 1;
    return s[n] == '\0' ? n : n + 1;
}

struct feed {
    struct mg_loop loop;
    size_t n_token; /* taken in */
    bool found;
};

/* Takes in a text until a loop is found. */
static void feed(struct feed *f, const char *text) {
    for (size_t n; *text && !f->found; text += n) {
        n = piece_size(text);
        struct mg_slice piece = {(const uint8_t *)text, n};
        f->found = mg_loop_add(&f->loop, id_of(text, n), mg_loop_flags(piece));
        f->n_token++;
    }
}

static size_t count_tokens(const char *text) {
    size_t n = 0;
    for (; *text; text += piece_size(text)) n++;
    return n;
}

static struct feed *begin(void) {
    static struct feed f;
    memset(&f, 0, sizeof f);
    feed(&f, "The page shows the following.\n\n");
    return &f;
}

static void passes(const char *row, int times) {
    struct feed *f = begin();
    for (int i = 0; i < times; i++) feed(f, row);
    feed(f, "\nThat is all.");
    if (f->found)
        fail_msg("\"%s\" x %d stopped at token %zu, %zu repeats of %zu", row, times, f->n_token,
                 f->loop.repeats, f->loop.period);
}

/* Stops no later than `most` tokens after the first token of the first repeat, and not before 192.
 */
static void stops_within(const char *unit, size_t most) {
    struct feed *f = begin();
    size_t start = f->n_token;
    for (int i = 0; i < 4000 && !f->found; i++) feed(f, unit);
    size_t took = f->n_token - start;
    if (!f->found || took > most || took < 150)
        fail_msg("\"%.40s\": %s after %zu tokens, wanted at most %zu", unit,
                 f->found ? "stopped" : "not stopped", took, most);
}

static void equal_rows_pass(void **state) {
    (void)state;
    static const char *rows[] = {
        "| 1 | Apple | 3.50 | yes |\n",
        "| Total | 0 | 0 | 0 | 0 |\n",
        "| | | | | | | |\n",
        "Apple\t12\t3.50\t42.00\tin stock\n",
        "\t\t\t\t\n",
        "Apple 12 3.50 42.00 in stock today\n",
        "green red blue yellow white black orange violet grey brown pink\n",
        "n/a n/a n/a n/a n/a n/a n/a\n",
        "Yes.\n",
        "0\n",
        "-\n",
        "12.\n",
        "3,4,5,6,7,8,9\n",
        "<tr><td>0</td><td>none</td><td>0</td></tr>\n",
        "<tr><td>0</td><td>none</td></tr>",
        "0 & 0 & 1.5 \\\\\n",
        "{\"name\": \"a\", \"value\": 0},\n",
        "Name: ______ Date: ______ Place: ______\n",
        "A very wide row with more than forty tokens of text in it, 1 2 3 4 5 6 7 8 9 10 11 12 13 "
        "14 15 16\n",
        "| a | b | c | d | e | f | g | h | i | j | k | l | m | n | o | p | q | r | s | t | u | v | "
        "w | x | y |\n",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) passes(rows[i], 60);
    passes("| 0 | 0 |\n", 200);
    passes("| --- |\n", 200);
    passes("|---|---|---|---|---|---|---|---|\n", 1);
    passes("| 0 ", 48);
    passes("....", 40); /* a dotted line */
}

static void rows_in_turn_pass(void **state) {
    (void)state;
    passes("| odd | 1 | yes |\n| even | 2 | no |\n", 30);
    passes("red one 10\ngreen two 20\nblue three 30\n", 20);
    passes("Margay Ltd\n12 Cat Street\nOcelot Town\n\n", 30); /* a sheet of labels */
}

static void loops_stop(void **state) {
    (void)state;
    stops_within("!", 200);
    stops_within("0", 200);
    stops_within(" the", 200);
    stops_within(" ha ha", 200);
    stops_within(" left right", 200);
    stops_within("\n", 200);
    stops_within("0\n", 200);
    stops_within(" The image shows a red car parked near a tall building.", 200);
    stops_within("The image shows a red car parked near a tall building.\n", 200);
    stops_within("I am sorry, I can not read the text in 2 places.\n\n", 200);
    stops_within("What is it? A cat.\nAnd what is this? This is a dog!\n", 200);
    stops_within(" and then he said that she said that they said that we said", 200);
    stops_within(
        "\xE8\xBF\x99\xE6\x98\xAF\xE4\xB8\x80\xE5\xBC\xA0\xE5\x9B\xBE\xE7\x89\x87\xE3\x80\x82",
        200);
}

/* The limits that the header states. */
static void long_or_rowlike_loops_stop_late(void **state) {
    (void)state;
    char paragraph[2000] = "";
    for (int i = 0; i < 100; i++)
        snprintf(paragraph + strlen(paragraph), 16, " w%c%c", 'a' + i / 10, 'a' + i % 10);
    assert_int_equal(count_tokens(paragraph), 100);
    stops_within(paragraph, 4 * 100 + 1);
    static const char *line = "green red blue yellow white black orange violet grey brown\n";
    stops_within(line, 64 * count_tokens(line) + 1);
    stops_within("| Total | 0 | 0 |\n", MG_LOOP_TABLE_TOKENS + 1);
    stops_within("| 0 ", 64 * 4 + 1);
}

static void what_changes_never_stops(void **state) {
    (void)state;
    struct feed *f = begin();
    char line[128];
    for (int i = 1; i <= 3000; i++) {
        snprintf(line, sizeof line, "%d. The same words on every line of the list.\n", i);
        feed(f, line);
    }
    assert_false(f->found);
    f = begin();
    for (int i = 1; i <= 500; i++) { /* numbers of 20 equal digits between words */
        snprintf(line, sizeof line, " %.20s x%d", "00000000000000000000", i);
        feed(f, line);
    }
    assert_false(f->found);
    f = begin(); /* no period at all */
    uint32_t r = 1;
    for (int i = 0; i < 20000 && !f->found; i++) {
        r = r * 1664525u + 1013904223u;
        f->found = mg_loop_add(&f->loop, (int32_t)(r >> 30), 0);
    }
    assert_false(f->found);
}

static void found_in_the_middle_of_an_answer(void **state) {
    (void)state;
    struct feed *f = begin();
    char line[64];
    for (int i = 0; i < 400; i++) { /* past the ring's size */
        snprintf(line, sizeof line, " w%d and more", i * 7919 % 1000);
        feed(f, line);
    }
    size_t start = f->n_token;
    assert_false(f->found);
    while (!f->found) feed(f, " It repeats itself.");
    assert_int_equal(f->loop.period, 4);
    assert_in_range(f->n_token - start, MG_LOOP_TOKENS - 4, 200);
}

/* The tails kept by increments against their definition, and the smallest period alone deciding. */
static void against_the_definition(void **state) {
    (void)state;
    static struct mg_loop l;
    static int32_t id[6000];
    memset(&l, 0, sizeof l);
    uint32_t r = 5;
    size_t n = 0;
    while (n < 6000) {
        r = r * 1664525u + 1013904223u;
        size_t p = 1 + (r >> 24) % 60, times = 1 + (r >> 16) % 5;
        if (p * (times + 1) >= MG_LOOP_TOKENS) continue; /* must not be found */
        int32_t unit[64];
        for (size_t i = 0; i < p; i++) unit[i] = (int32_t)((r = r * 1664525u + 1013904223u) >> 29);
        for (size_t i = 0; i < p * times && n < 6000; i++) {
            id[n] = unit[i % p];
            mg_loop_add(&l, id[n++], 0);
        }
        for (size_t q = 1; q <= MG_LOOP_PERIOD; q++) {
            uint32_t equal = 0;
            while (n > q + equal && id[n - 1 - equal] == id[n - 1 - equal - q]) equal++;
            if (l.equal[q] != equal) fail_msg("period %zu: %u, wanted %u", q, l.equal[q], equal);
        }
    }
}

static void flags_of_texts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        unsigned flags;
    } cases[] = {
        {"", 0},
        {" word", 0},
        {"\n", MG_LOOP_NEWLINE},
        {" |\n", MG_LOOP_CELL | MG_LOOP_NEWLINE},
        {"\t", MG_LOOP_CELL},
        {"</", MG_LOOP_CELL},
        {" &", MG_LOOP_CELL},
        {"7", MG_LOOP_DIGIT},
        {".", MG_LOOP_STOP},
        {".\n\n", MG_LOOP_STOP | MG_LOOP_NEWLINE},
        {"?!", MG_LOOP_STOP},
        {"\xE3\x80\x82", MG_LOOP_STOP},
        {"\xEF\xBC\x81\n", MG_LOOP_STOP | MG_LOOP_NEWLINE},
        {"\x80\x82", 0},
        {".x", 0},
        {"   ", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mg_slice s = {(const uint8_t *)cases[i].text, strlen(cases[i].text)};
        if (mg_loop_flags(s) != cases[i].flags) fail_msg("case %zu: %u", i, mg_loop_flags(s));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_rows_pass),
        cmocka_unit_test(rows_in_turn_pass),
        cmocka_unit_test(loops_stop),
        cmocka_unit_test(long_or_rowlike_loops_stop_late),
        cmocka_unit_test(what_changes_never_stops),
        cmocka_unit_test(found_in_the_middle_of_an_answer),
        cmocka_unit_test(against_the_definition),
        cmocka_unit_test(flags_of_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
