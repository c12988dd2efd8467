/* cpu/topology.h - how many threads may compute here, and on which processors.
 *
 * count = min(physical cores in the affinity mask, the quota of every cgroup ancestor), at least
 * 1. A quota with a fraction counts as the next whole number when the fraction is worth more than
 * a tenth of the whole (1.5 as 2, 2.5 as 3, 10.5 as 10): the pool's threads block instead of
 * spinning while others are throttled, so that all of the budget is used (measured:
 * docs/speed.md). When the allowed processors lie on several NUMA nodes, only the cores of the
 * nearest group count: the node with the most of them, and the nodes that share its package
 * (threads on a second socket make decoding slower, since the weights' pages lie on one). Who pins
 * takes the first n_thread of cpu.
 *
 * All paths are below `root` ("" for the real system), so that tests bring fixtures of other
 * machines:
 *     ROOT/affinity, the mask as a list "0-3,8"; absent: all online. (Really: the system call)
 *     ROOT/sys/devices/system/cpu/online, cpuN/topology/{core_cpus_list or thread_siblings_list,
 *         physical_package_id}; ROOT/sys/devices/system/node/{online, nodeN/cpulist}
 *     ROOT/proc/self/{cgroup,mountinfo}, and the cgroup mount points that mountinfo names
 * Anything absent or malformed is as if it did not limit anything.
 */
#ifndef MG_CPU_TOPOLOGY_H
#define MG_CPU_TOPOLOGY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define MG_MAX_CPU 1024

struct mg_topology {
    int n_online;          /* logical processors of the machine */
    int n_affinity;        /* of these, allowed by the affinity mask */
    int n_core;            /* physical cores among the allowed */
    int n_core_near;       /* of these, cores of the nearest group; n_core with one node */
    int n_node;            /* NUMA nodes that the allowed ones lie on, at least 1 */
    double quota;          /* processors' worth of time by cgroup v1 or v2, 0 = unlimited */
    char quota_path[256];  /* folder of the cgroup that sets the quota, "" when unlimited */
    int n_thread;          /* the count to use */
    int cpu[MG_MAX_CPU];   /* n_core processors, one per core (its lowest allowed one): the nearest
                              group's first, then by node and number. Where to pin threads */
    int node[MG_MAX_CPU];  /* n_core entries: the node of cpu[i], 0 where unknown */
    size_t memory_limit;   /* cgroup memory limit in bytes, 0 = unlimited */
    char memory_path[256]; /* folder of the cgroup that sets it, "" when unlimited */
};

/* Never fails: what can't be found out is taken as one core without limits. Processors from
 * MG_MAX_CPU on are not seen. */
void mg_topology_read(const char *root, struct mg_topology *out);

/* Keeps the calling thread, and the threads that it makes from now on, to the processors of `list`
 * ("0-3,8") that its affinity mask allows; mg_topology_read counts only these afterwards.
 * MG_ERR_ARGUMENT for a list that names none of them. */
enum mg_status mg_affinity_narrow(const char *list, struct mg_err *err);

#endif
