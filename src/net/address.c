/* net/address.c - see address.h. */
#include "net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static bool is_public4(uint32_t a) {
    static const struct {
        uint32_t prefix;
        int bits;
    } special[] = {
        {0x00000000, 8},  /* "this network" */
        {0x0A000000, 8},  /* 10/8 private */
        {0x64400000, 10}, /* 100.64/10 shared, carriers' NAT */
        {0x7F000000, 8},  /* loopback */
        {0xA9FE0000, 16}, /* 169.254/16 link-local, clouds' metadata */
        {0xAC100000, 12}, /* 172.16/12 private */
        {0xC0000000, 24}, /* 192.0.0/24 protocols */
        {0xC0000200, 24}, /* 192.0.2/24 documentation */
        {0xC0586300, 24}, /* 192.88.99/24 6to4 relays, withdrawn */
        {0xC0A80000, 16}, /* 192.168/16 private */
        {0xC6120000, 15}, /* 198.18/15 benchmarks */
        {0xC6336400, 24}, /* 198.51.100/24 documentation */
        {0xCB007100, 24}, /* 203.0.113/24 documentation */
        {0xE0000000, 3},  /* 224/3 multicast, reserved, broadcast */
    };
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        if (!((a ^ special[i].prefix) >> (32 - special[i].bits))) return false;
    return true;
}

static uint32_t at4(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool is_public6(const uint8_t a[16]) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    static const uint8_t nat64[12] = {0, 0x64, 0xFF, 0x9B};
    if (!memcmp(a, mapped, 12) || !memcmp(a, nat64, 12)) return is_public4(at4(a + 12));
    uint32_t head = at4(a);
    if (head >> 29 != 1) return false; /* only 2000::/3 is handed out as global unicast */
    if (head >> 9 == 0x20010000 >> 9) return false;   /* 2001::/23: Teredo, ORCHID, benchmarks */
    if (head == 0x20010DB8) return false;             /* documentation */
    if (head >> 12 == 0x3FFF0000 >> 12) return false; /* 3fff::/20 documentation */
    if (head >> 16 == 0x2002) return is_public4(at4(a + 2)); /* 6to4 */
    return true;
}

bool mg_address_is_public(const struct sockaddr *address, socklen_t n) {
    if (address->sa_family == AF_INET && n >= sizeof(struct sockaddr_in))
        return is_public4(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr));
    if (address->sa_family == AF_INET6 && n >= sizeof(struct sockaddr_in6))
        return is_public6(((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr);
    return false;
}
