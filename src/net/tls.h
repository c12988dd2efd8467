/* net/tls.h - a server's certificate and key, a client's trust, and one connection's encryption,
 * over OpenSSL 3.
 *
 * TLS 1.2 and newer, no renegotiation, ALPN "http/1.1". A context is made anew to read changed
 * files; connections keep the one that they began with, which OpenSSL counts.
 */
#ifndef MG_NET_TLS_H
#define MG_NET_TLS_H

#include "base/err.h"

#include <stdbool.h>

typedef struct ssl_ctx_st mg_tls_context; /* OpenSSL's SSL_CTX */
typedef struct ssl_st mg_tls;             /* OpenSSL's SSL */

/* Reads a certificate chain and a key, PEM; their agreement is checked. */
enum mg_status mg_tls_context_open(const char *cert, const char *key, mg_tls_context **out,
                                   struct mg_err *err);
void mg_tls_context_close(mg_tls_context *context);

/* The server's side of a connection on this socket, which stays the caller's; NULL: no memory. */
mg_tls *mg_tls_accept(mg_tls_context *context, int fd);

/* For connections that we make. `ca_file`: PEM file of trusted certificates, NULL for the system's
 * (and SSL_CERT_FILE, SSL_CERT_DIR); not looked at when any certificate will do (`trust_all`). */
enum mg_status mg_tls_client_open(const char *ca_file, bool trust_all, mg_tls_context **out,
                                  struct mg_err *err);
/* Our side of a connection to `host`, a name or an address without brackets, which the certificate
 * has to name; the socket stays the caller's. NULL: no memory. */
mg_tls *mg_tls_connect(mg_tls_context *context, int fd, const char *host);
/* The handshake has ended well. */
bool mg_tls_ready(const mg_tls *tls);
/* After a failed handshake: was it the certificate? */
bool mg_tls_distrusted(const mg_tls *tls);

#endif
