/* engine/stop.h - stop strings over streamed text.
 *
 * Text goes in piece by piece and comes out as soon as it can't be the beginning of a stop string:
 * at most the longest stop string less a byte is held back. The stop string that is complete first
 * ends the text, the longest of those that end at the same byte; the text before it comes out, it
 * doesn't. How the text is cut into pieces changes nothing. Where whole characters go in, whole
 * characters come out.
 *
 * Each string has its Knuth-Morris-Pratt automaton: a byte costs at most two steps a string on
 * average.
 */
#ifndef MG_ENGINE_STOP_H
#define MG_ENGINE_STOP_H

#include "base/err.h"
#include "base/mem.h"

#define MG_MAX_STOP 16
#define MG_MAX_STOP_BYTES 1024

struct mg_stop;

/* At most MG_MAX_STOP strings of 1 .. MG_MAX_STOP_BYTES bytes that begin with a whole character. */
bool mg_stop_valid(const char *const *stop, size_t n_stop);
/* The strings are copied. MG_ERR_ARGUMENT when they aren't valid. */
enum mg_status mg_stop_open(const char *const *stop, size_t n_stop, struct mg_stop **out,
                            struct mg_err *err);
void mg_stop_close(struct mg_stop *s); /* NULL is fine */
/* Takes n bytes in, appends what may be shown to `out`; *stopped once a stop string is complete,
 * after which nothing more is taken. false: out of memory, and the text is not to be used further.
 */
bool mg_stop_add(struct mg_stop *s, const void *text, size_t n, struct mg_buf *out, bool *stopped);
/* At the end of the text: what was held back, nothing after a stop. */
bool mg_stop_flush(struct mg_stop *s, struct mg_buf *out);
/* Which stop string ended the text, or -1. */
int mg_stop_which(const struct mg_stop *s);

#endif
