/* net/tls.c - see tls.h. */
#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <stdio.h>
#include <string.h>

/* OpenSSL's reason for the last failure; texts of its own, they hold no bytes of the files. */
static const char *reason(void) {
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "unknown reason";
}

static int no_passphrase(char *buf, int size, int write, void *user) {
    return -1;
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *n,
                           const unsigned char *offered, unsigned n_offered, void *user) {
    static const char http11[] = "http/1.1";
    for (unsigned i = 0; i < n_offered; i += 1u + offered[i]) {
        if (offered[i] != sizeof http11 - 1 || n_offered - i < sizeof http11) continue;
        if (memcmp(offered + i + 1, http11, sizeof http11 - 1)) continue;
        *out = offered + i + 1;
        *n = offered[i];
        return SSL_TLSEXT_ERR_OK;
    }
    return SSL_TLSEXT_ERR_NOACK;
}

enum mg_status mg_tls_context_open(const char *cert, const char *key, mg_tls_context **out,
                                   struct mg_err *err) {
    *out = NULL;
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context) return mg_fail_memory(err, "TLS context");
    enum mg_status status = MG_OK;
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* tickets need no memory */
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    SSL_CTX_set_default_passwd_cb(context, no_passphrase); /* never ask on a terminal */
    if (SSL_CTX_use_certificate_chain_file(context, cert) != 1)
        status = mg_fail(err, MG_ERR_FORMAT, "tls_certificate", "can't use the certificate %s: %s",
                         cert, reason());
    else if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        status = mg_fail(err, MG_ERR_FORMAT, "tls_key", "can't use the key %s: %s", key, reason());
    else if (SSL_CTX_check_private_key(context) != 1)
        status = mg_fail(err, MG_ERR_FORMAT, "tls_key", "the key %s is not of the certificate %s",
                         key, cert);
    ERR_clear_error();
    if (status) {
        SSL_CTX_free(context);
        return status;
    }
    *out = context;
    return MG_OK;
}

void mg_tls_context_close(mg_tls_context *context) {
    SSL_CTX_free(context);
}

mg_tls *mg_tls_accept(mg_tls_context *context, int fd) {
    SSL *ssl = SSL_new(context);
    if (ssl && SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        ssl = NULL;
    }
    if (ssl) SSL_set_accept_state(ssl);
    ERR_clear_error();
    return ssl;
}
