/* store/redis_link.h - one blocking connection to a Redis server, in which nothing takes longer
 * than it may.
 *
 * Commands are formatted and replies parsed by hiredis; the socket, its deadline and TLS are ours.
 * Two reasons: Debian 12's hiredis (0.14) has no TLS, and its blocking calls limit each read and
 * not the whole, while a slow server must never hold a request up (row 58 of the list of known
 * faults: everything hung while Redis was paused). Here one deadline covers looking the name up,
 * connecting, the handshake, AUTH and SELECT, and another each command with its reply.
 *
 *     struct mg_redis_link *link;
 *     st = mg_redis_link_open(&url, NULL, 0.2, &link, err);
 *     st = mg_redis_link_call(link, 0.2, 1, (const char *[]){"PING"}, NULL, &reply, err);
 *     freeReplyObject(reply);
 *     mg_redis_link_close(link);
 *
 * What a server sends is not trusted: a reply may have MG_REDIS_MAX_REPLY bytes. A link on which
 * anything but an error reply has failed is of no more use: what is read next might belong to an
 * earlier command. Further calls on it fail at once. One thread at a time. SIGPIPE must be ignored.
 *
 * Codes: redis_host (name unknown), redis_refused, redis_timeout, redis_closed, redis_tls,
 * redis_auth (NOAUTH, WRONGPASS, NOPERM), redis_loading (LOADING, MASTERDOWN, CLUSTERDOWN),
 * redis_moved (MOVED, ASK: another node of a cluster has the key), redis_error (other
 * error replies), redis_reply (bytes that are no reply, or too many).
 */
#ifndef MG_STORE_REDIS_LINK_H
#define MG_STORE_REDIS_LINK_H

#include "store/redis_url.h"

#define MG_REDIS_MAX_REPLY ((size_t)64 << 20)

struct redisReply; /* hiredis.h; freeReplyObject */
struct mg_redis_link;

/* PEM files for rediss://; NULL: the system's authorities, no certificate of our own. */
struct mg_redis_tls {
    const char *ca_file, *cert_file, *key_file;
};

/* Connected, authenticated, on the URL's database. tls may be NULL. seconds > 0. */
enum mg_status mg_redis_link_open(const struct mg_redis_url *url, const struct mg_redis_tls *tls,
                                  double seconds, struct mg_redis_link **out, struct mg_err *err);
void mg_redis_link_close(struct mg_redis_link *link); /* NULL is fine */

/* One command of n_arg arguments; n_byte NULL: they end at their NUL. An error reply is a failure
 * of this call (MG_ERR_IO); the link stays usable. *reply may be NULL when nobody wants it. */
enum mg_status mg_redis_link_call(struct mg_redis_link *link, double seconds, int n_arg,
                                  const char *const *arg, const size_t *n_byte,
                                  struct redisReply **reply, struct mg_err *err);

/* From now on a reply has this much longer for each of its bytes that comes: a large one over a
 * slow network is not late while it comes at this pace. 0, as at first: it has not. */
void mg_redis_link_pace(struct mg_redis_link *link, double bytes_a_second);

#endif
