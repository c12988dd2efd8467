/* net/tls.c - see tls.h. */
#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>

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

enum mg_status mg_tls_client_open(const char *ca_file, bool trust_all, mg_tls_context **out,
                                  struct mg_err *err) {
    static const unsigned char http11[] = "\x08http/1.1";
    *out = NULL;
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context) return mg_fail_memory(err, "TLS context");
    enum mg_status status = MG_OK;
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_verify(context, trust_all ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (SSL_CTX_set_alpn_protos(context, http11, sizeof http11 - 1) != 0)
        status = mg_fail_memory(err, "TLS context");
    else if (!trust_all && ca_file && SSL_CTX_load_verify_file(context, ca_file) != 1)
        status = mg_fail(err, MG_ERR_FORMAT, "tls_certificate",
                         "can't use the certificates in %s: %s", ca_file, reason());
    else if (!trust_all && !ca_file && SSL_CTX_set_default_verify_paths(context) != 1)
        status =
            mg_fail(err, MG_ERR_IO, "tls_certificate", "no trusted certificates: %s", reason());
    ERR_clear_error();
    if (status)
        SSL_CTX_free(context);
    else
        *out = context;
    return status;
}

mg_tls *mg_tls_connect(mg_tls_context *context, int fd, const char *host) {
    struct in6_addr address;
    bool is_address =
        inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
    SSL *ssl = SSL_new(context);
    bool ok = ssl && SSL_set_fd(ssl, fd) == 1;
    if (ok && is_address)
        ok = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    else if (ok)
        ok = SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
    ERR_clear_error();
    if (!ok) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_connect_state(ssl);
    return ssl;
}

bool mg_tls_ready(const mg_tls *tls) {
    return SSL_is_init_finished(tls) == 1;
}

bool mg_tls_distrusted(const mg_tls *tls) {
    return SSL_get_verify_result(tls) != X509_V_OK;
}
