/* cli/doctor_files.c - where margay runs (container), how many files it may open, and /tmp.
 *
 * Files: serve's HTTP server takes 1,024 connections and holds up to 256 more to refuse them
 * (net/http_server.h), each a file; beside them stand weights, logs, listeners and fetched
 * pictures.
 */
#include "cli/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FILES_WANTED (1024 + 256 + 64)
#define TMP_WANTED ((uint64_t)64 << 20) /* bytes */

void mg_doctor_place(struct mg_doctor *d) {
    const char *group = mg_doctor_read(d, "/proc/self/cgroup");
    const char *what = NULL, *env = *d->root ? NULL : getenv("KUBERNETES_SERVICE_HOST");
    if (!group) group = "";
    if (env || mg_doctor_exists(d, "/run/secrets/kubernetes.io") ||
        mg_doctor_exists(d, "/var/run/secrets/kubernetes.io") || strstr(group, "kubepods")) {
        d->place = MG_PLACE_KUBERNETES, what = "a Kubernetes pod";
    } else if (mg_doctor_exists(d, "/.dockerenv") || strstr(group, "/docker/") ||
               strstr(group, "/docker-")) {
        d->place = MG_PLACE_DOCKER, what = "a Docker container";
    } else {
        const char *kind = mg_doctor_read(d, "/run/systemd/container");
        if (mg_doctor_exists(d, "/run/.containerenv"))
            what = "a Podman container";
        else if (kind && *kind)
            what = mg_doctor_text(d, "a container (%.40s)", kind);
        if (what) d->place = MG_PLACE_CONTAINER;
    }
    if (!what) return;
    mg_doctor_say(
        d, MG_LEVEL_NOTE, "container",
        "The container's limits count, not the machine's, and are lifted from outside.",
        mg_doctor_by_place(
            d, NULL, "docker inspect --format '{{json .HostConfig}}' CONTAINER shows its limits",
            "kubectl describe pod NAME shows its limits",
            "podman inspect CONTAINER, or the container's configuration, shows its limits"),
        "margay runs in %s", what);
}

/* --- open files, address space */
/* The soft limit of a line of /proc/self/limits; UINT64_MAX for unlimited. */
static bool soft_limit(const char *limits, const char *name, uint64_t *out) {
    const char *s = limits ? strstr(limits, name) : NULL;
    if (!s) return false;
    s += strlen(name);
    s += strspn(s, " ");
    *out = strncmp(s, "unlimited", 9) ? strtoull(s, NULL, 10) : UINT64_MAX;
    return *out == UINT64_MAX || (*s >= '0' && *s <= '9');
}

static void check_limits(struct mg_doctor *d) {
    const char *limits = mg_doctor_read(d, "/proc/self/limits");
    uint64_t n;
    if (soft_limit(limits, "Max open files", &n) && n < FILES_WANTED)
        mg_doctor_say(d, MG_LEVEL_WARNING, "open-files",
                      "Each client of serve takes one; at the limit new clients are not let in.",
                      mg_doctor_by_place(
                          d, "ulimit -n 65536 (systemd: LimitNOFILE=65536 in the unit)",
                          "docker run --ulimit nofile=65536:65536 ...",
                          "raise LimitNOFILE of the node's container runtime (containerd.service)",
                          "raise the container's limit of open files to 65536"),
                      "at most %llu open files, serve may need %d", (unsigned long long)n,
                      FILES_WANTED);
    else if (n >= FILES_WANTED && limits)
        mg_doctor_say(d, MG_LEVEL_OK, "open-files", NULL, NULL, "open files: enough");
    if (soft_limit(limits, "Max address space", &n) && n != UINT64_MAX &&
        (double)n < 2 * d->need_bytes)
        mg_doctor_say(d, MG_LEVEL_PROBLEM, "address-space",
                      "The weights are mapped, and a whole context's address space is reserved.",
                      "ulimit -v unlimited (systemd: LimitAS=infinity)",
                      "at most %.2f GB of address space, %s needs about %.2f", (double)n / 1e9,
                      d->model, 2 * d->need_bytes / 1e9);
}

/* --- /tmp */
/* Options of the mount that holds `folder`: the last of the longest mount points. */
static void mount_options(struct mg_doctor *d, const char *folder, bool *read_only, bool *noexec) {
    const char *text = mg_doctor_read(d, "/proc/self/mountinfo");
    size_t best = 0;
    *read_only = *noexec = false;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        char point[1024], options[512], padded[516];
        if (*line == '\n') line++;
        /* id parent major:minor root point options */
        if (sscanf(line, "%*s %*s %*s %*s %1023s %511s", point, options) != 2) continue;
        size_t n = strcmp(point, "/") ? strlen(point) : 0;
        if (strncmp(folder, point, n) || (folder[n] != '/' && folder[n]) || n < best) continue;
        best = n;
        snprintf(padded, sizeof padded, ",%s,", options);
        *read_only = strstr(padded, ",ro,") != NULL;
        *noexec = strstr(padded, ",noexec,") != NULL;
    }
}

/* Bytes free in the file system of `folder`. */
static bool free_bytes(struct mg_doctor *d, const char *folder, uint64_t *out) {
    struct statvfs s;
    if (!*d->root) {
        if (statvfs(folder, &s) != 0) return false;
        *out = (uint64_t)s.f_bavail * s.f_frsize;
        return true;
    }
    const char *text = mg_doctor_read(d, "/statvfs");
    for (const char *line = text; line; line = strchr(line, '\n')) {
        char path[256];
        unsigned long long total, left;
        if (*line == '\n') line++;
        if (sscanf(line, "%255s %llu %llu", path, &total, &left) != 3 || strcmp(path, folder))
            continue;
        *out = left;
        return true;
    }
    return false;
}

static void check_tmp(struct mg_doctor *d) {
    static const char why[] = "margay itself keeps uploads in memory and writes nothing there, but "
                              "builds, tests and tools around it do.";
    const char *folder = *d->root ? NULL : getenv("TMPDIR");
    bool read_only, noexec;
    uint64_t left = UINT64_MAX;
    if (!folder || !*folder) folder = "/tmp";
    mount_options(d, folder, &read_only, &noexec);
    bool there = mg_doctor_exists(d, folder);
    bool denied = there && !*d->root && access(folder, W_OK | X_OK) != 0;
    const char *mount = mg_doctor_by_place(
        d, mg_doctor_text(d, "sudo mount -o remount,rw %s, or TMPDIR=FOLDER", folder),
        mg_doctor_text(d, "docker run --tmpfs %s:exec ...", folder),
        mg_doctor_text(d, "mount an emptyDir volume at %s", folder), "mount a tmpfs there");
    if (!there || read_only || denied)
        mg_doctor_say(d, MG_LEVEL_WARNING, "tmp", why,
                      there ? mount : mg_doctor_text(d, "sudo install -d -m 1777 %s", folder),
                      "%s %s", folder,
                      !there      ? "is not there"
                      : read_only ? "is on a read-only file system"
                                  : "is not writable for this user");
    else if (free_bytes(d, folder, &left) && left < TMP_WANTED)
        mg_doctor_say(
            d, MG_LEVEL_WARNING, "tmp", why,
            mg_doctor_text(d, "du -xsh %s/* shows what fills it; or TMPDIR=FOLDER", folder),
            "%s is full: %.0f MB free", folder, (double)left / 1e6);
    else
        mg_doctor_say(d, MG_LEVEL_OK, "tmp", NULL, NULL, "%s: writable", folder);
    if (there && noexec)
        mg_doctor_say(
            d, MG_LEVEL_NOTE, "tmp-noexec",
            "margay does not care; the tests run programs that they build there.",
            mg_doctor_text(d, "%s",
                           d->place == MG_PLACE_HOST
                               ? mg_doctor_text(d, "sudo mount -o remount,exec %s", folder)
                               : mount),
            "%s is mounted noexec", folder);
}

void mg_doctor_files(struct mg_doctor *d) {
    check_limits(d);
    check_tmp(d);
}
