/* cpu/topology.h - how many threads may compute here, and on which processors.
 *
 * count = min(physical cores in the affinity mask, the quota of every cgroup ancestor), at least 1. A quota
 * with a fraction counts as its floor, 1.5 as 1, so that CFS throttling never stops the whole pool.
 * All paths are below `root` ("" for the real system), so that tests bring fixtures of other machines.
 */
#ifndef MG_CPU_TOPOLOGY_H
#define MG_CPU_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

#define MG_MAX_CPU 1024

struct mg_topology {
    int n_online;              /* logical processors of the machine */
    int n_affinity;            /* of these, allowed by the affinity mask */
    int n_core;                /* physical cores among the allowed */
    int n_node;                /* NUMA nodes that the allowed ones lie on, at least 1 */
    double quota;              /* processors' worth of time by cgroup v1 or v2, 0 = unlimited */
    char quota_path[256];      /* the cgroup that sets the quota, "" when unlimited */
    int n_thread;              /* the count to use */
    int cpu[MG_MAX_CPU];       /* n_core processors, one per core, in order of node: where threads may be pinned */
    size_t memory_limit;       /* cgroup memory limit in bytes, 0 = unlimited */
};

void mg_topology_read(const char *root, struct mg_topology *out);

#endif
