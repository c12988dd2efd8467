/* cpu/topology.c - see topology.h.
 *
 * Everything here is read from small text files whose content is not trusted: a fixture, a
 * container's made-up /sys, a file that changed while it was read. Each parser takes a whole line
 * or nothing.
 *
 * cgroups. /proc/self/cgroup names this process's group per hierarchy ("0::/a/b" for v2,
 * "4:cpu,cpuacct:/a" for v1), /proc/self/mountinfo says where that hierarchy is mounted and which
 * of its groups is the root of the mount. A bind mount in a container shows /docker/ID as root and
 * also as path, so the group's folder is the mount point plus what is left of the path behind the
 * root. Every folder from there up to the mount point is an ancestor that may limit; groups above
 * the mount are invisible to this process. A path outside the root (entered from another cgroup
 * namespace) leaves the mount point itself.
 */
#include "cpu/topology.h"

#include "base/io.h"

#include <limits.h>
#include <math.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PATH 1024
#define MAX_NODE 1024
#define MAX_FILE (4u << 20) /* mountinfo of a busy container host */

struct cpu_set {
    uint8_t has[MG_MAX_CPU]; /* 0 or 1 */
    int n;
};

/* The reading's scratch; large, so on the heap. */
struct reader {
    const char *root;        /* borrowed */
    struct mg_topology *out; /* borrowed */
    struct cpu_set online, allowed, list;
    int node_of[MG_MAX_CPU];    /* by processor; 0 where no node claims it */
    int core_of[MG_MAX_CPU];    /* lowest processor of the same core */
    int package_of[MG_MAX_CPU]; /* -1 where unknown */
    struct mg_buf text;         /* the file read last */
};

/* The whole of root + path as text, up to a NUL in it, or NULL. The next call replaces it. */
static char *read_text(struct reader *r, const char *path) {
    char full[MAX_PATH * 2];
    int n = snprintf(full, sizeof full, "%s%s", r->root, path);
    if (n < 0 || (size_t)n >= sizeof full) return NULL;
    r->text.n = 0;
    r->text.failed = false;
    r->text.max = MAX_FILE;
    if (mg_file_read(full, MAX_FILE, &r->text, NULL) != MG_OK || !r->text.n) return NULL;
    return (char *)r->text.data;
}

/* A decimal number at *s, moved behind it. Saturates. */
static bool parse_u64(const char **s, uint64_t *out) {
    const char *p = *s;
    if (*p < '0' || *p > '9') return false;
    uint64_t v = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        v = v > (UINT64_MAX - digit) / 10 ? UINT64_MAX : v * 10 + digit;
    }
    *s = p;
    *out = v;
    return true;
}

static bool at_end(const char *s) {
    while (*s == '\n' || *s == ' ' || *s == '\t' || *s == '\r') s++;
    return *s == '\0';
}

/* "0-3,8": false, and an empty set, when anything else is in it. */
static bool parse_list(const char *s, struct cpu_set *out) {
    memset(out, 0, sizeof *out);
    while (s && !at_end(s)) {
        uint64_t first, last;
        bool ok = parse_u64(&s, &first);
        last = first;
        if (ok && *s == '-') {
            s++;
            ok = parse_u64(&s, &last) && last >= first;
        }
        if (ok && *s == ',')
            s++;
        else if (ok && !at_end(s))
            ok = false;
        if (!ok) {
            memset(out, 0, sizeof *out);
            return false;
        }
        for (uint64_t i = first; i <= last && i < MG_MAX_CPU; i++) {
            out->n += !out->has[i];
            out->has[i] = 1;
        }
    }
    return out->n > 0;
}

static bool read_list(struct reader *r, const char *path, struct cpu_set *out) {
    return parse_list(read_text(r, path), out);
}

static void system_affinity(struct cpu_set *out) {
    /* The kernel refuses a mask shorter than its own, which may be larger than MG_MAX_CPU. */
    memset(out, 0, sizeof *out);
    for (int n = MG_MAX_CPU; n <= 1 << 17; n *= 4) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set) return;
        size_t bytes = CPU_ALLOC_SIZE(n);
        bool ok = sched_getaffinity(0, bytes, set) == 0;
        for (int i = 0; ok && i < MG_MAX_CPU; i++) out->has[i] = CPU_ISSET_S(i, bytes, set) != 0;
        CPU_FREE(set);
        if (ok) break;
    }
    for (int i = 0; i < MG_MAX_CPU; i++) out->n += out->has[i];
}

static void read_allowed(struct reader *r) {
    bool real = r->root[0] == '\0';
    read_list(r, "/sys/devices/system/cpu/online", &r->online);
    if (real)
        system_affinity(&r->allowed);
    else
        read_list(r, "/affinity", &r->allowed);

    if (r->online.n == 0) {
        /* No sysfs: what the mask holds, and as many more as the C library knows of. */
        r->online = r->allowed;
        long n = real ? sysconf(_SC_NPROCESSORS_ONLN) : 0;
        if (r->online.n == 0 && n < 1) n = 1;
        for (int i = 0; i < MG_MAX_CPU && r->online.n < n; i++) {
            r->online.n += !r->online.has[i];
            r->online.has[i] = 1;
        }
    }
    struct cpu_set both = {.n = 0};
    for (int i = 0; i < MG_MAX_CPU; i++) {
        both.has[i] = r->online.has[i] && (r->allowed.n == 0 || r->allowed.has[i]);
        both.n += both.has[i];
    }
    /* When they contradict, the mask is believed. */
    if (both.n == 0) both = r->allowed.n ? r->allowed : r->online;
    r->allowed = both;
    r->out->n_online = r->online.n;
    r->out->n_affinity = r->allowed.n;
}

static void read_nodes(struct reader *r) {
    struct cpu_set node;
    char path[128];
    if (!read_list(r, "/sys/devices/system/node/online", &node)) return;
    for (int i = 0; i < MAX_NODE; i++) {
        if (!node.has[i]) continue;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", i);
        if (!read_list(r, path, &r->list)) continue;
        for (int c = 0; c < MG_MAX_CPU; c++)
            if (r->list.has[c]) r->node_of[c] = i;
    }
}

static void read_cores(struct reader *r) {
    char path[128];
    for (int c = 0; c < MG_MAX_CPU; c++) {
        r->core_of[c] = c;
        r->package_of[c] = -1;
        if (!r->allowed.has[c]) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_cpus_list", c);
        bool found = read_list(r, path, &r->list);
        if (!found) { /* its name before Linux 5.4 */
            snprintf(path, sizeof path,
                     "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
            found = read_list(r, path, &r->list);
        }
        if (found && r->list.has[c]) {
            int first = 0;
            while (!r->list.has[first]) first++;
            r->core_of[c] = first;
        }
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                 c);
        const char *s = read_text(r, path);
        uint64_t id;
        if (s && parse_u64(&s, &id) && at_end(s) && id < INT_MAX) r->package_of[c] = (int)id;
    }
}

/* Chooses one processor per core and puts the nearest group first. */
static void choose(struct reader *r) {
    struct mg_topology *out = r->out;
    static const int far = INT_MAX;
    uint8_t taken[MG_MAX_CPU] = {0};
    int n_core_of_node[MAX_NODE] = {0}, rank[MAX_NODE], best = 0;
    bool used[MAX_NODE] = {false};
    int pick[MG_MAX_CPU];
    for (int c = 0; c < MG_MAX_CPU; c++) {
        if (!r->allowed.has[c]) continue;
        used[r->node_of[c]] = true;
        if (taken[r->core_of[c]]) continue;
        taken[r->core_of[c]] = 1;
        pick[out->n_core++] = c;
        n_core_of_node[r->node_of[c]]++;
    }
    for (int i = 0; i < MAX_NODE; i++) {
        out->n_node += used[i];
        rank[i] = far;
        if (n_core_of_node[i] > n_core_of_node[best]) best = i;
    }
    rank[best] = 0;
    for (int i = 0; i < out->n_core; i++) /* nodes of the same package are near too */
        for (int k = 0; k < out->n_core && rank[r->node_of[pick[i]]] == far; k++)
            if (r->node_of[pick[k]] == best && r->package_of[pick[k]] >= 0 &&
                r->package_of[pick[k]] == r->package_of[pick[i]])
                rank[r->node_of[pick[i]]] = 1;
    int n = 0;
    for (int pass = 0; pass < 3; pass++) {
        for (int node = 0; node < MAX_NODE; node++) {
            if ((pass < 2 ? rank[node] != pass : rank[node] != far) || !n_core_of_node[node])
                continue;
            for (int i = 0; i < out->n_core; i++) {
                if (r->node_of[pick[i]] != node) continue;
                out->cpu[n] = pick[i];
                out->node[n++] = node;
            }
        }
        if (pass < 2) out->n_core_near = n;
    }
}

/* A limit that a group's folder sets. */
enum limit { CPU_V2, CPU_V1, MEMORY_V2, MEMORY_V1 };

static void set_path(char *out, size_t cap, const char *path) {
    size_t n = strnlen(path, cap - 1);
    memcpy(out, path, n);
    out[n] = '\0';
}

static void take_quota(struct reader *r, const char *folder, uint64_t quota, uint64_t period) {
    if (quota == 0 || period == 0 || quota > (uint64_t)1 << 62) return;
    double n = (double)quota / (double)period;
    if (r->out->quota > 0 && n >= r->out->quota) return;
    r->out->quota = n;
    set_path(r->out->quota_path, sizeof r->out->quota_path, folder);
}

static void take_memory(struct reader *r, const char *folder, uint64_t bytes) {
    /* v1 says "unlimited" with a number near 2^63, rounded down to a page. */
    if (bytes >= (uint64_t)1 << 62 || bytes > SIZE_MAX) return;
    if (bytes == 0) bytes = 1; /* 0 would read as unlimited */
    if (r->out->memory_limit && bytes >= r->out->memory_limit) return;
    r->out->memory_limit = (size_t)bytes;
    set_path(r->out->memory_path, sizeof r->out->memory_path, folder);
}

static bool read_number(struct reader *r, const char *folder, const char *name, uint64_t *out) {
    char path[MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const char *s = read_text(r, path);
    return s && parse_u64(&s, out) && at_end(s);
}

static void read_limit(struct reader *r, enum limit limit, const char *folder) {
    uint64_t a, b;
    if (limit == CPU_V1) {
        if (read_number(r, folder, "cpu.cfs_quota_us", &a) && /* -1, unlimited, is no number here */
            read_number(r, folder, "cpu.cfs_period_us", &b))
            take_quota(r, folder, a, b);
    } else if (limit == CPU_V2) {
        char path[MAX_PATH + 64];
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        const char *s = read_text(r, path);
        if (!s || !parse_u64(&s, &a)) return; /* "max 100000" */
        while (*s == ' ') s++;
        if (at_end(s))
            b = 100000;
        else if (!parse_u64(&s, &b) || !at_end(s))
            return;
        take_quota(r, folder, a, b);
    } else if (read_number(r, folder, limit == MEMORY_V2 ? "memory.max" : "memory.limit_in_bytes",
                           &a)) {
        take_memory(r, folder, a);
    }
}

/* `word` is an element of the comma-separated list [s, s+n). */
static bool in_list(const char *s, size_t n, const char *word) {
    size_t n_word = strlen(word);
    for (size_t i = 0; i <= n;) {
        size_t end = i;
        while (end < n && s[end] != ',') end++;
        if (end - i == n_word && memcmp(s + i, word, n_word) == 0) return true;
        i = end + 1;
    }
    return false;
}

/* Copies up to `n` bytes of a mountinfo field, \040 and the like decoded. false when it doesn't
 * fit. */
static bool unescape(const char *s, size_t n, char out[MAX_PATH]) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\\' && n - i >= 4 && s[i + 1] >= '0' && s[i + 1] <= '3' && s[i + 2] >= '0' &&
            s[i + 2] <= '7' && s[i + 3] >= '0' && s[i + 3] <= '7') {
            c = (unsigned char)((s[i + 1] - '0') * 64 + (s[i + 2] - '0') * 8 + (s[i + 3] - '0'));
            i += 3;
        }
        if (c == '\0' || k + 1 >= MAX_PATH) return false;
        out[k++] = (char)c;
    }
    out[k] = '\0';
    return true;
}

/* What is left of `path` behind `mount_root`, "" or "/...", or NULL when it lies elsewhere. */
static const char *behind(const char *path, const char *mount_root) {
    size_t n = strlen(mount_root);
    while (n > 0 && mount_root[n - 1] == '/') n--;
    if (strncmp(path, mount_root, n) != 0 || (path[n] != '/' && path[n] != '\0')) return NULL;
    return path[n] == '/' && path[n + 1] == '\0' ? "" : path + n;
}

/* One line of mountinfo: "ID PARENT DEV ROOT POINT OPTIONS... - TYPE SOURCE SUPER". */
struct mount {
    char root[MAX_PATH], point[MAX_PATH];
    const char *type, *super;
    size_t n_type, n_super;
};

static bool parse_mount(const char *line, size_t n, struct mount *out) {
    const char *field[64];
    size_t size[64], n_field = 0, dash = 0;
    for (size_t i = 0; i < n && n_field < 64;) {
        size_t end = i;
        while (end < n && line[end] != ' ') end++;
        field[n_field] = line + i;
        size[n_field] = end - i;
        if (n_field >= 6 && !dash && end - i == 1 && line[i] == '-') dash = n_field;
        n_field++;
        i = end + 1;
    }
    if (!dash || dash + 1 >= n_field) return false;
    out->type = field[dash + 1];
    out->n_type = size[dash + 1];
    bool has_super = dash + 3 < n_field;
    out->super = has_super ? field[dash + 3] : "";
    out->n_super = has_super ? size[dash + 3] : 0;
    return unescape(field[3], size[3], out->root) && unescape(field[4], size[4], out->point) &&
           out->point[0] == '/';
}

/* The mount of a hierarchy (controller NULL: v2) that shows the most ancestors of `path`:
 * out_point and the folder below it. false when the hierarchy isn't mounted. */
static bool find_mount(struct reader *r, const char *controller, const char *path,
                       char out_point[MAX_PATH], char out_rest[MAX_PATH]) {
    const char *text = read_text(r, "/proc/self/mountinfo");
    size_t best = SIZE_MAX;
    static const char v1[] = "cgroup", v2[] = "cgroup2";
    const char *type = controller ? v1 : v2;
    while (text && *text) {
        size_t n = strcspn(text, "\n");
        struct mount m;
        if (parse_mount(text, n, &m) && m.n_type == strlen(type) &&
            memcmp(m.type, type, m.n_type) == 0 &&
            (!controller || in_list(m.super, m.n_super, controller))) {
            const char *rest = behind(path, m.root);
            /* Shorter root, more ancestors; of equals the later, which covers the earlier. */
            size_t rank = rest ? strlen(m.root) : SIZE_MAX - 1;
            if (rank <= best) {
                best = rank;
                memcpy(out_point, m.point, MAX_PATH);
                snprintf(out_rest, MAX_PATH, "%s", rest ? rest : "");
            }
        }
        text += n;
        if (*text == '\n') text++;
    }
    return best != SIZE_MAX;
}

/* Looks at a group and all its visible ancestors. */
static void walk(struct reader *r, const char *controller, const char *path, enum limit limit) {
    char point[MAX_PATH] = "", rest[MAX_PATH] = "", folder[MAX_PATH];
    if (!find_mount(r, controller, path, point, rest)) return;
    if (strstr(rest, "/../") || (strlen(rest) >= 3 && strcmp(rest + strlen(rest) - 3, "/..") == 0))
        rest[0] = '\0'; /* above what this namespace sees */
    for (;;) {
        int n = snprintf(folder, sizeof folder, "%s%s", strcmp(point, "/") ? point : "", rest);
        if (n >= 0 && (size_t)n < sizeof folder) read_limit(r, limit, folder);
        char *slash = strrchr(rest, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

static void read_cgroups(struct reader *r) {
    const char *text = read_text(r, "/proc/self/cgroup");
    if (!text) return;
    char *copy = strdup(text); /* read_text's buffer is used again below */
    if (!copy) return;
    for (char *line = copy, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path || path[1] != '/' || strlen(path + 1) >= MAX_PATH) continue;
        size_t n = (size_t)(path - list) - 1;
        if (n == 0) {
            walk(r, NULL, path + 1, CPU_V2);
            walk(r, NULL, path + 1, MEMORY_V2);
        }
        if (in_list(list + 1, n, "cpu")) walk(r, "cpu", path + 1, CPU_V1);
        if (in_list(list + 1, n, "memory")) walk(r, "memory", path + 1, MEMORY_V1);
    }
    free(copy);
}

void mg_topology_read(const char *root, struct mg_topology *out) {
    memset(out, 0, sizeof *out);
    struct reader *r = calloc(1, sizeof *r);
    if (!r) {
        out->n_online = out->n_affinity = out->n_core = out->n_core_near = out->n_node =
            out->n_thread = 1;
        return;
    }
    r->root = root;
    r->out = out;
    read_allowed(r);
    read_nodes(r);
    read_cores(r);
    choose(r);
    read_cgroups(r);
    out->n_thread = out->n_core_near;
    if (out->quota > 0 && out->quota < out->n_thread) {
        double whole = floor(out->quota);
        out->n_thread = (int)(out->quota > 1.1 * whole ? whole + 1 : whole);
    }
    if (out->n_thread < 1) out->n_thread = 1;
    mg_buf_free(&r->text);
    free(r);
}

enum mg_status mg_affinity_narrow(const char *list, struct mg_err *err) {
    struct cpu_set wanted;
    cpu_set_t mask;
    int left = 0;
    if (!parse_list(list, &wanted))
        return mg_fail(err, MG_ERR_ARGUMENT, "cpu_range",
                       "'%.60s' is not a list of processors such as 0-3,8", list);
    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        return mg_fail_errno(err, "read", "the affinity mask", errno);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &mask)) continue;
        if (i < MG_MAX_CPU && wanted.has[i])
            left++;
        else
            CPU_CLR(i, &mask);
    }
    if (left == 0)
        return mg_fail(err, MG_ERR_ARGUMENT, "cpu_range",
                       "none of the processors %.60s may be used here", list);
    if (sched_setaffinity(0, sizeof mask, &mask) != 0)
        return mg_fail_errno(err, "set", "the affinity mask", errno);
    return MG_OK;
}
