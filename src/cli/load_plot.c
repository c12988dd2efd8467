/* cli/load_plot.c - a run of margay load as one SVG, in the way of bench_plot.c.
 *
 *     title: server, load, figures
 *     how long it took: requests by time on a logarithmic axis, whole answers and first tokens,
 *         with the median, 95 and 99 of 100 of whole answers
 *     over time: answers and errors a second
 *     over time: median and 95 of 100 of the answers that ended then, and requests under way
 *
 * Long runs are drawn by groups of seconds. Nothing is fetched; texts are plain ASCII.
 */
#include "cli/load.h"

#include <math.h>
#include <stdio.h>

enum {
    WIDTH = 860,
    LEFT = 70,  /* where plots begin */
    SPAN = 750, /* their width */
    HIGH = 160, /* and height */
    GAP = 70,   /* from one to the next */
    MARGIN = 20,
    BINS = 75,    /* of the histogram */
    COLUMNS = 250 /* at most, of what is drawn over time */
};
#define ANSWER "#9ecae1"
#define FIRST "#fdae6b"
#define ERROR "#de2d26"
#define LINE "#2171b5"

static void text_at(struct mg_buf *out, double x, double y, const char *class, const char *text) {
    mg_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    for (const char *c = text; *c; c++) switch (*c) {
        case '&': mg_buf_add_str(out, "&amp;"); break;
        case '<': mg_buf_add_str(out, "&lt;"); break;
        case '>': mg_buf_add_str(out, "&gt;"); break;
        case '"': mg_buf_add_str(out, "&quot;"); break;
        default: mg_buf_add_byte(out, *c >= ' ' && *c < 127 ? (uint8_t)*c : '?');
        }
    mg_buf_add_str(out, "</text>\n");
}

static void rect(struct mg_buf *out, double x, double y, double width, double height,
                 const char *fill) {
    mg_buf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                  x, y, width, height, fill);
}

static void line(struct mg_buf *out, double x1, double y1, double x2, double y2, const char *ink) {
    mg_buf_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                  x1, y1, x2, y2, ink);
}

static void say_time(char *out, size_t cap, double seconds) {
    double ms = 1e3 * seconds;
    if (ms >= 1e4)
        snprintf(out, cap, "%.3g s", seconds);
    else
        snprintf(out, cap, "%.3g ms", ms);
}

/* The least of 1, 2, 5 times a power of ten that is not below x. */
static double round_up(double x) {
    if (!(x > 0)) return 1;
    double ten = pow(10, floor(log10(x)));
    double step[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (step[i] * ten >= x * (1 - 1e-9)) return step[i] * ten;
    return 10 * ten;
}

/* Frame, head, and the scale's end and middle on the left. */
static void frame(struct mg_buf *out, double y, const char *head, double most, bool is_time) {
    char text[40];
    text_at(out, MARGIN, y - 12, "head", head);
    line(out, LEFT, y + HIGH, LEFT + SPAN, y + HIGH, "#333");
    for (int i = 1; i <= 2; i++) {
        double value = most * i / 2;
        if (is_time)
            say_time(text, sizeof text, value);
        else
            snprintf(text, sizeof text, "%.6g", value);
        line(out, LEFT, y + HIGH - HIGH * i / 2.0, LEFT + SPAN, y + HIGH - HIGH * i / 2.0, "#ddd");
        text_at(out, MARGIN - 10, y + HIGH - HIGH * i / 2.0 + 4, "label", text);
    }
}

/* --- how long it took --- */

struct axis {
    double low, high; /* seconds, powers of ten apart at most by their range */
};

static double place(const struct axis *a, double seconds) {
    double share = log(fmax(seconds, a->low) / a->low) / log(a->high / a->low);
    return LEFT + SPAN * fmin(fmax(share, 0), 1);
}

static void bars(struct mg_buf *out, double y, const struct axis *a,
                 const struct mg_load_histogram *h, double most, bool left_half, const char *fill) {
    double width = (double)SPAN / BINS;
    uint64_t before = 0;
    for (int i = 0; i < BINS; i++) {
        double high = a->low * pow(a->high / a->low, (double)(i + 1) / BINS);
        uint64_t up_to = i == BINS - 1 ? h->n : mg_load_histogram_up_to(h, high);
        double height = HIGH * (double)(up_to - before) / most;
        if (up_to > before)
            rect(out, LEFT + i * width + (left_half ? 0 : width / 2), y + HIGH - height, width / 2,
                 height, fill);
        before = up_to;
    }
}

static double most_in_bin(const struct axis *a, const struct mg_load_histogram *h) {
    uint64_t before = 0, most = 0;
    for (int i = 0; i < BINS; i++) {
        double high = a->low * pow(a->high / a->low, (double)(i + 1) / BINS);
        uint64_t up_to = i == BINS - 1 ? h->n : mg_load_histogram_up_to(h, high);
        if (up_to - before > most) most = up_to - before;
        before = up_to;
    }
    return (double)most;
}

static double draw_histogram(struct mg_buf *out, double y, const struct mg_load_record *r) {
    static const struct {
        double q;
        const char *name;
    } mark[] = {{0.5, "p50"}, {0.95, "p95"}, {0.99, "p99"}};
    char text[80], value[24];
    if (!r->answer.n) return y;
    struct axis a = {fmax(r->answer.min, 1e-5), fmax(r->answer.max, 2e-5)};
    if (r->first.n) a.low = fmin(a.low, fmax(r->first.min, 1e-5));
    a.low *= 0.95;
    a.high = fmax(a.high * 1.05, a.low * 1.5);
    double most = round_up(fmax(most_in_bin(&a, &r->answer), most_in_bin(&a, &r->first)));
    frame(out, y, "Requests by how long they took from their due time", most, false);
    bars(out, y, &a, &r->first, most, true, FIRST);
    bars(out, y, &a, &r->answer, most, false, ANSWER);
    for (size_t i = 0; i < 3; i++) {
        double t = mg_load_histogram_quantile(&r->answer, mark[i].q), x = place(&a, t);
        say_time(value, sizeof value, t);
        snprintf(text, sizeof text, "%s %s", mark[i].name, value);
        line(out, x, y, x, y + HIGH, LINE);
        /* One below the other, and to the left where there is no room on the right. */
        text_at(out, x > LEFT + SPAN - 110 ? x - 105 : x + 4, y + 12 + 14 * (double)i, "label",
                text);
    }
    /* Ticks at 1, 2, 5 of each power of ten, as far as they are apart. */
    double step[] = {1, 2, 5}, last = 0;
    for (double ten = pow(10, floor(log10(a.low))); ten <= a.high; ten *= 10)
        for (int i = 0; i < 3; i++) {
            double x = place(&a, step[i] * ten);
            if (step[i] * ten < a.low || step[i] * ten > a.high || x < last + 50) continue;
            say_time(value, sizeof value, step[i] * ten);
            line(out, x, y + HIGH, x, y + HIGH + 5, "#333");
            text_at(out, x - 12, y + HIGH + 20, "label", value);
            last = x;
        }
    rect(out, LEFT, y + HIGH + 28, 12, 12, FIRST);
    text_at(out, LEFT + 18, y + HIGH + 38, "label", "first token");
    rect(out, LEFT + 120, y + HIGH + 28, 12, 12, ANSWER);
    text_at(out, LEFT + 138, y + HIGH + 38, "label", "whole answer");
    return y + HIGH + GAP + 15; /* the legend */
}

/* --- over time --- */

struct column {
    double ok, error; /* a second */
    double p50, p95;  /* seconds; weighted mean and greatest; 0: none ended */
    double under_way; /* greatest */
};

/* Fills at most COLUMNS columns of *group seconds each; their number. */
static size_t columns_of(const struct mg_load_record *r, struct column *c, size_t *group) {
    *group = (r->n_second + COLUMNS - 1) / COLUMNS;
    if (!*group) return 0;
    size_t n = (r->n_second + *group - 1) / *group;
    for (size_t i = 0; i < n; i++) {
        double ok = 0, error = 0, weighted = 0;
        size_t from = i * *group, to = mg_min_size(from + *group, r->n_second);
        c[i] = (struct column){0};
        for (size_t k = from; k < to; k++) {
            const struct mg_load_second *s = &r->second[k];
            ok += s->ok;
            error += s->error;
            weighted += (double)s->ok * s->p50;
            c[i].p95 = fmax(c[i].p95, s->p95);
            c[i].under_way = fmax(c[i].under_way, s->under_way);
        }
        /* The last second may be a part of one. */
        double seconds = fmin((double)(to - from), fmax(r->end - r->begin - (double)from, 0.1));
        c[i].ok = ok / seconds;
        c[i].error = error / seconds;
        c[i].p50 = ok > 0 ? weighted / ok : 0;
    }
    return n;
}

static void time_axis(struct mg_buf *out, double y, size_t n, size_t group) {
    double all = (double)(n * group), step = round_up(all / 10);
    char text[24];
    for (double t = 0; t <= all * 1.0001; t += step) {
        double x = LEFT + SPAN * t / all;
        line(out, x, y + HIGH, x, y + HIGH + 5, "#333");
        snprintf(text, sizeof text, "%g s", t);
        text_at(out, x - 8, y + HIGH + 20, "label", text);
    }
}

/* A line through the columns that have a value, broken where they have none. */
static void curve(struct mg_buf *out, double y, const struct column *c, size_t n, bool p95,
                  double most, const char *ink) {
    bool open = false;
    for (size_t i = 0; i < n; i++) {
        double value = p95 ? c[i].p95 : c[i].p50;
        double x = LEFT + SPAN * ((double)i + 0.5) / (double)n;
        if (!(value > 0)) {
            if (open) mg_buf_add_str(out, "\"/>\n");
            open = false;
            continue;
        }
        if (!open)
            mg_buf_printf(out,
                          "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
                          "stroke-linecap=\"round\" points=\"",
                          ink);
        mg_buf_printf(out, "%s%.1f,%.1f", open ? " " : "", x, y + HIGH - HIGH * value / most);
        /* A lone point would not be seen. */
        if (!open) mg_buf_printf(out, " %.1f,%.1f", x + 1, y + HIGH - HIGH * value / most);
        open = true;
    }
    if (open) mg_buf_add_str(out, "\"/>\n");
}

static double draw_time(struct mg_buf *out, double y, const struct mg_load_record *r) {
    struct column c[COLUMNS];
    size_t group, n = columns_of(r, c, &group);
    double rate = 0, slow = 0, width = n ? (double)SPAN / (double)n : 0;
    if (!n) return y;
    for (size_t i = 0; i < n; i++) {
        rate = fmax(rate, c[i].ok + c[i].error);
        slow = fmax(slow, c[i].p95);
    }
    rate = round_up(rate);
    frame(out, y, "Answers (blue) and errors (red) a second", rate, false);
    for (size_t i = 0; i < n; i++) {
        double ok = HIGH * c[i].ok / rate, error = HIGH * c[i].error / rate;
        double x = LEFT + (double)i * width;
        if (ok > 0) rect(out, x, y + HIGH - ok, width * 0.9, ok, ANSWER);
        if (error > 0) rect(out, x, y + HIGH - ok - error, width * 0.9, error, ERROR);
    }
    time_axis(out, y, n, group);
    y += HIGH + GAP;
    if (!(slow > 0)) return y;
    slow = round_up(slow);
    frame(out, y, "Whole answers that ended then: median (blue) and 95 of 100 (orange)", slow,
          true);
    curve(out, y, c, n, true, slow, FIRST);
    curve(out, y, c, n, false, slow, LINE);
    time_axis(out, y, n, group);
    return y + HIGH + GAP;
}

bool mg_load_plot(const struct mg_load_plan *p, const struct mg_load_record *r,
                  struct mg_buf *out) {
    struct mg_buf body = {0};
    char text[400], load[160];
    double seconds = fmax(r->end - r->begin, 1e-9);
    snprintf(text, sizeof text, "%.120s, %.120s", p->url, p->model);
    text_at(&body, MARGIN, 32, "title", text);
    mg_load_say_load(p, load, sizeof load);
    snprintf(text, sizeof text,
             "%s: %llu answers, %llu errors in %.1f s; %.2f answers and %.1f tokens a second", load,
             (unsigned long long)r->n_kind[MG_LOAD_OK],
             (unsigned long long)mg_load_record_errors(r), seconds,
             (double)r->n_kind[MG_LOAD_OK] / seconds, (double)r->completion_tokens / seconds);
    text_at(&body, MARGIN, 54, "label", text);
    double y = draw_histogram(&body, 104, r);
    y = draw_time(&body, y, r);
    int high = (int)y - 20;
    mg_buf_printf(out,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n<title>margay load</title>\n"
                  "<style>.title{font-size:18px;font-weight:bold}.head{font-size:14px;"
                  "font-weight:bold}.label{font-size:12px}</style>\n"
                  "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                  WIDTH, high, WIDTH, high, WIDTH, high);
    bool ok = !body.failed && mg_buf_add(out, body.data, body.n) && mg_buf_add_str(out, "</svg>\n");
    mg_buf_free(&body);
    return ok;
}
