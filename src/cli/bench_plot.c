/* cli/bench_plot.c - the figures of margay bench as one SVG.
 *
 *     title: processor, kernels, threads; model, weights; picture, prompt
 *     bars in one scale: vision, prefill, first token, second question
 *     bars in another: a further token, and several conversations' where measured
 *     lines of text: start, memory, the machine's limits
 *
 * A bar is the median; its dark part is the shortest time that the machine allows, the thin line
 * the range. Colours, sizes and texts stand here alone; nothing is fetched, so the file can be
 * opened, mailed or put into a page as it is.
 */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 860,
    LEFT = 200, /* where bars begin */
    SPAN = 440, /* length of the longest */
    ROW = 30,   /* from one bar to the next */
    THICK = 18, /* of a bar */
    MARGIN = 20,
    LINE = 20 /* of text */
};
#define BAR "#9ecae1"
#define LIMIT "#2171b5"

/* Text of an element: the five characters that mean something to XML, and none that it forbids. */
static void escaped(struct mg_buf *out, const char *text) {
    for (const char *c = text; *c; c++) switch (*c) {
        case '&': mg_buf_add_str(out, "&amp;"); break;
        case '<': mg_buf_add_str(out, "&lt;"); break;
        case '>': mg_buf_add_str(out, "&gt;"); break;
        case '"': mg_buf_add_str(out, "&quot;"); break;
        default:
            /* What isn't ASCII may be no UTF-8 (a folder's name): shown as '?'. */
            mg_buf_add_byte(out, *c >= ' ' && *c < 127 ? (uint8_t)*c : '?');
        }
}

static void text_at(struct mg_buf *out, int x, int y, const char *class, const char *text) {
    mg_buf_printf(out, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, class);
    escaped(out, text);
    mg_buf_add_str(out, "</text>\n");
}

struct bar {
    char label[64];
    struct mg_figure f;
};

/* "2104 ms, 57 % of the limit" */
static void say_value(const struct bar *bar, char *text, size_t cap) {
    double ms = bar->f.median;
    int n = ms >= 10000 ? snprintf(text, cap, "%.1f s", ms / 1e3)
                        : snprintf(text, cap, "%.*f ms",
                                   ms >= 100  ? 0
                                   : ms >= 10 ? 1
                                              : 2,
                                   ms);
    double share = mg_figure_share(&bar->f);
    if (share > 0 && n > 0 && (size_t)n < cap)
        snprintf(text + n, cap - (size_t)n, ", %.0f %% of the limit", 100 * share);
}

/* Bars in one scale from y on; returns where the next thing goes. */
static int draw_bars(struct mg_buf *out, int y, const char *title, const struct bar *bar,
                     size_t n) {
    double most = 0;
    char text[96];
    if (n == 0) return y;
    for (size_t i = 0; i < n; i++) most = fmax(most, bar[i].f.max);
    text_at(out, MARGIN, y + 16, "head", title);
    y += 28;
    for (size_t i = 0; i < n; i++, y += ROW) {
        const struct mg_figure *f = &bar[i].f;
        double scale = most > 0 ? SPAN / most : 0, at = LEFT + f->median * scale;
        text_at(out, MARGIN, y + 14, "label", bar[i].label);
        mg_buf_printf(out,
                      "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"" BAR "\"/>\n",
                      LEFT, y, f->median * scale, THICK);
        if (f->limit > 0)
            mg_buf_printf(
                out, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"" LIMIT "\"/>\n",
                LEFT, y, fmin(f->limit, f->median) * scale, THICK);
        if (f->n > 1)
            mg_buf_printf(
                out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#333\"/>\n",
                LEFT + f->min * scale, y + THICK / 2, LEFT + f->max * scale, y + THICK / 2);
        say_value(&bar[i], text, sizeof text);
        text_at(out, (int)fmax(at, LEFT + f->max * scale) + 8, y + 14, "label", text);
    }
    return y + 8;
}

static int draw_first(struct mg_buf *out, int y, const struct mg_bench *b) {
    static const enum mg_metric shown[] = {MG_METRIC_VISION, MG_METRIC_PREFILL,
                                           MG_METRIC_FIRST_TOKEN, MG_METRIC_SECOND};
    struct bar bar[4];
    size_t n = 0;
    for (size_t i = 0; i < 4; i++) {
        if (!b->figure[shown[i]].n) continue;
        snprintf(bar[n].label, sizeof bar[n].label, "%s",
                 shown[i] == MG_METRIC_SECOND ? "second question" : mg_metrics[shown[i]].label);
        bar[n++].f = b->figure[shown[i]];
    }
    return draw_bars(out, y, "To the first token", bar, n);
}

static int draw_decode(struct mg_buf *out, int y, const struct mg_bench *b) {
    struct bar bar[1 + MG_MAX_BENCH_BATCH];
    size_t n = 0;
    if (b->figure[MG_METRIC_DECODE].n) {
        snprintf(bar[n].label, sizeof bar[n].label, "one conversation");
        bar[n++].f = b->figure[MG_METRIC_DECODE];
    }
    for (size_t i = 0; i < b->n_batch; i++) {
        snprintf(bar[n].label, sizeof bar[n].label, "%zu together", b->batch[i]);
        bar[n++].f = b->batch_figure[i];
    }
    return draw_bars(out, y, "Each further token", bar, n);
}

static int draw_texts(struct mg_buf *out, int y, const struct mg_bench *b) {
    const struct mg_limit_rate *rate = b->limits[b->n_limits - 1].rate;
    const struct mg_figure *f = b->figure;
    char text[200];
    text_at(out, MARGIN, y + 16, "head", "Start and memory; limits measured in the same run");
    y += 24;
    if (f[MG_METRIC_READY].n) {
        snprintf(text, sizeof text,
                 "ready %.0f ms after the start; first token of a new process after %.0f ms",
                 f[MG_METRIC_READY].median, f[MG_METRIC_FIRST_REQUEST].median);
        text_at(out, MARGIN, y += LINE, "label", text);
        snprintf(text, sizeof text, "peak memory %.0f MiB, of it %.0f MiB not shared",
                 f[MG_METRIC_PEAK_RSS].median, f[MG_METRIC_RSS_ANON].median);
        text_at(out, MARGIN, y += LINE, "label", text);
    }
    snprintf(text, sizeof text, "reads %.1f GB/s; f32 %.0f, bf16 %.0f GFLOP/s (%s)",
             rate[MG_LIMIT_READ].median * 1e-9, rate[MG_LIMIT_F32].median * 1e-9,
             rate[MG_LIMIT_BF16].median * 1e-9, rate[MG_LIMIT_BF16].name);
    text_at(out, MARGIN, y += LINE, "label", text);
    if (rate[MG_LIMIT_INT8].median > 0) {
        snprintf(text, sizeof text, "int8 %.0f GOP/s (%s)", rate[MG_LIMIT_INT8].median * 1e-9,
                 rate[MG_LIMIT_INT8].name);
        text_at(out, MARGIN, y += LINE, "label", text);
    }
    return y + MARGIN;
}

bool mg_bench_plot(const struct mg_bench *b, struct mg_buf *out) {
    struct mg_buf body = {0};
    char text[240];
    snprintf(text, sizeof text, "%s%s, weights %s", b->model,
             b->random_weights ? " (random weights)" : "", b->weights);
    text_at(&body, MARGIN, 32, "title", text);
    snprintf(text, sizeof text, "margay %s on %s, %s kernels, %zu thread%s", mg_version(),
             b->features.brand, mg_tier_name(b->features.tier), b->n_thread,
             b->n_thread == 1 ? "" : "s");
    text_at(&body, MARGIN, 54, "label", text);
    snprintf(text, sizeof text,
             "picture %u x %u (%zu tokens), prompt %zu tokens, %zu generated; medians of %zu",
             b->image.width, b->image.height, b->image.tokens, b->prompt_tokens,
             b->generated_tokens, b->n_run);
    text_at(&body, MARGIN, 74, "label", text);
    text_at(&body, MARGIN, 94, "label",
            "Dark: the least time that this machine's limits allow. Line: least and greatest.");
    int y = draw_first(&body, 112, b);
    y = draw_decode(&body, y, b);
    y = draw_texts(&body, y, b);
    mg_buf_printf(out,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n<title>margay bench</title>\n"
                  "<style>.title{font-size:18px;font-weight:bold}.head{font-size:14px;"
                  "font-weight:bold}.label{font-size:13px}</style>\n"
                  "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                  WIDTH, y, WIDTH, y, WIDTH, y);
    bool ok = !body.failed && mg_buf_add(out, body.data, body.n) && mg_buf_add_str(out, "</svg>\n");
    mg_buf_free(&body);
    return ok;
}
