/* net/address.h - is an internet address one of the public internet?
 *
 * By IANA's registries of special-purpose addresses. Forms of IPv6 that carry an IPv4 address
 * (mapped, NAT64's well-known prefix, 6to4) are judged by that one as well.
 */
#ifndef MG_NET_ADDRESS_H
#define MG_NET_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Globally reachable unicast; false for every other family. */
bool mg_address_is_public(const struct sockaddr *address, socklen_t n);

#endif
