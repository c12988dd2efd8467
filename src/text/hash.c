/* text/hash.c - see hash.h. */
#include "text/hash.h"

#include "base/io.h"

#include <sys/random.h>

void mg_hash_seed(uint64_t seed[2]) {
    if (getrandom(seed, 2 * sizeof *seed, GRND_NONBLOCK) == (ssize_t)(2 * sizeof *seed)) return;
    seed[0] = (uint64_t)(mg_clock() * 1e9) * 0xD6E8FEB86659FD93u;
    seed[1] = (uint64_t)(uintptr_t)seed * 0xA5A3564E6A1D2C4Bu ^ seed[0] >> 32;
}
