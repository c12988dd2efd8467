/* The scanner alone, piece by piece: the real merges would hide most wrong cuts, since they never
 * cross one, but a tokenizer with other merges would show them. */
#include "support.h"

#include "text/split.h"
#include "text/unicode.h"

#include <string.h>

static void one_text(json_t *line, size_t number) {
    json_t *text = json_array_get(line, 0), *sizes = json_array_get(line, 1);
    const uint8_t *s = (const uint8_t *)json_string_value(text);
    size_t n = json_string_length(text), at = 0;
    for (size_t i = 0; i < json_array_size(sizes); i++) {
        size_t want = (size_t)json_integer_value(json_array_get(sizes, i));
        size_t end = mg_split_next(mg_unicode_class(), s, n, at);
        if (end - at != want)
            fail_msg("line %zu: piece %zu has %zu bytes, the reference's %zu", number + 1, i,
                     end - at, want);
        at = end;
    }
    assert_int_equal(at, n);
}

static void recorded_pieces(void **state) {
    assert_int_equal(for_each_line("tests/data/text/pieces.jsonl.gz", one_text), 1560);
}

/* The tables hold what the pattern's classes mean to the reference, not what they mean today. */
static void classes(void **state) {
    static const struct {
        uint32_t c;
        uint8_t is, is_not;
    } row[] = {
        {'a', MG_CH_LETTER, MG_CH_NUMBER | MG_CH_SPACE | MG_CH_NFC},
        {'\n', MG_CH_SPACE | MG_CH_NEWLINE, MG_CH_LETTER},
        {0x0B, MG_CH_SPACE, MG_CH_NEWLINE},
        {0x1C, 0, MG_CH_SPACE}, /* space to Python's re, not to the reference */
        {0x85, MG_CH_SPACE, MG_CH_NEWLINE},
        {0x200B, 0, MG_CH_SPACE},
        {0x0301, MG_CH_NFC, MG_CH_LETTER},
        {0x1160 + 1, MG_CH_LETTER | MG_CH_NFC, 0}, /* Hangul vowel: joins what is before */
        {0x1ABF, 0, MG_CH_NFC},     /* a mark that the reference's NFC doesn't know */
        {0x2EBF0, MG_CH_LETTER, 0}, /* but its regex engine is newer */
        {0x00B2, MG_CH_NUMBER, MG_CH_LETTER},
        {0x10FFFF, 0, 0xFF},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        uint8_t k = mg_unicode_class()[row[i].c];
        if ((k & row[i].is) != row[i].is || (k & row[i].is_not))
            fail_msg("U+%04X has class bits %d", (unsigned)row[i].c, k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_pieces),
        cmocka_unit_test(classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
