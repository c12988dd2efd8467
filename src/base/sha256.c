/* base/sha256.c - see sha256.h. Both digests go through libcrypto's EVP interface. */
#include "base/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

static void *begin(const EVP_MD *kind) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context && EVP_DigestInit_ex(context, kind, NULL) != 1) {
        EVP_MD_CTX_free(context);
        context = NULL;
    }
    return context;
}

static void drop(void **context) {
    EVP_MD_CTX_free(*context);
    *context = NULL;
}

static void update(void **context, const void *data, size_t n) {
    if (*context && n && EVP_DigestUpdate(*context, data, n) != 1) drop(context);
}

static bool finish(void **context, uint8_t *digest, size_t size) {
    unsigned got = 0;
    uint8_t all[EVP_MAX_MD_SIZE];
    bool ok = *context && EVP_DigestFinal_ex(*context, all, &got) == 1 && got == size;
    if (ok)
        memcpy(digest, all, size);
    else
        memset(digest, 0, size);
    drop(context);
    return ok;
}

void mg_sha256_begin(struct mg_sha256 *h) {
    h->context = begin(EVP_sha256());
}
void mg_sha256_update(struct mg_sha256 *h, const void *data, size_t n) {
    update(&h->context, data, n);
}
bool mg_sha256_finish(struct mg_sha256 *h, uint8_t digest[MG_SHA256_BYTES]) {
    return finish(&h->context, digest, MG_SHA256_BYTES);
}
void mg_sha256_drop(struct mg_sha256 *h) {
    drop(&h->context);
}

bool mg_sha256(const void *data, size_t n, uint8_t digest[MG_SHA256_BYTES]) {
    struct mg_sha256 h;
    mg_sha256_begin(&h);
    mg_sha256_update(&h, data, n);
    return mg_sha256_finish(&h, digest);
}

void mg_sha1_begin(struct mg_sha1 *h) {
    h->context = begin(EVP_sha1());
}
void mg_sha1_begin_blob(struct mg_sha1 *h, uint64_t n) {
    char head[32];
    mg_sha1_begin(h);
    int len = snprintf(head, sizeof head, "blob %llu", (unsigned long long)n);
    mg_sha1_update(h, head, (size_t)len + 1); /* its zero byte belongs to it */
}
void mg_sha1_update(struct mg_sha1 *h, const void *data, size_t n) {
    update(&h->context, data, n);
}
bool mg_sha1_finish(struct mg_sha1 *h, uint8_t digest[MG_SHA1_BYTES]) {
    return finish(&h->context, digest, MG_SHA1_BYTES);
}
void mg_sha1_drop(struct mg_sha1 *h) {
    drop(&h->context);
}

void mg_hex(const uint8_t *bytes, size_t n, char *out) {
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        *out++ = digit[bytes[i] >> 4];
        *out++ = digit[bytes[i] & 15];
    }
    *out = 0;
}

static int nibble(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool mg_hex_parse(const char *text, uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int high = nibble(text[2 * i]);
        int low = high < 0 ? -1 : nibble(text[2 * i + 1]);
        if (low < 0) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return !text[2 * n];
}
