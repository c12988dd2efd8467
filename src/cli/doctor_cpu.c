/* cli/doctor_cpu.c - the processor: instruction set, cores and who may use them, clock, neighbours.
 *
 * Thresholds: steal above 5 % of the processors' time since start-up and a load above half the
 * processors are what makes bench's figures visibly worse; the other findings need none.
 */
#include "cli/doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU "/sys/devices/system/cpu"
#define NODE "/sys/devices/system/node"
#define GB 1e9

/* --- instruction set */
/* `word` is one of the flags. */
static bool flag(const char *flags, const char *word) {
    size_t n = strlen(word);
    for (const char *s = flags; s && (s = strstr(s, word)); s += n)
        if ((s == flags || s[-1] == ' ') && (s[n] == ' ' || s[n] == '\0' || s[n] == '\n'))
            return true;
    return false;
}

static bool flags(const char *text, const char *const *word) {
    for (; *word; word++)
        if (!flag(text, *word)) return false;
    return true;
}

/* The value of the first line "KEY : VALUE". */
static const char *line_value(struct mg_doctor *d, const char *text, const char *key) {
    for (const char *s = text; s && (s = strstr(s, key)); s++) {
        const char *v = s + strlen(key);
        if (s != text && s[-1] != '\n') continue;
        v += strspn(v, " \t");
        if (*v++ != ':') continue;
        v += strspn(v, " \t");
        return mg_doctor_text(d, "%.*s", (int)strcspn(v, "\n"), v);
    }
    return NULL;
}

/* The tier of another machine by the flags of its /proc/cpuinfo, which leaves out what the kernel
 * doesn't save. */
static bool features_of_root(struct mg_doctor *d) {
    static const char *const avx2[] = {"avx2", "fma", "f16c", NULL};
    static const char *const avx512[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", NULL};
    static const char *const amx[] = {"amx_tile", "amx_int8", "amx_bf16", NULL};
    struct mg_features *f = &d->features;
    const char *text = mg_doctor_read(d, "/proc/cpuinfo");
    const char *have = line_value(d, text, "flags"), *why = NULL;
    if (!have) return false;
    const char *brand = line_value(d, text, "model name"), *who = line_value(d, text, "vendor_id");
    snprintf(f->brand, sizeof f->brand, "%s", brand ? brand : "");
    f->intel = who && !strcmp(who, "GenuineIntel");
    f->hypervisor = flag(have, "hypervisor");
    f->avx_vnni = flag(have, "avx_vnni");
    if (!flags(have, avx2))
        why = "no AVX2, FMA and F16C among the flags";
    else if (f->best = f->avx_vnni ? MG_TIER_AVXVNNI : MG_TIER_AVX2, !flags(have, avx512))
        why = "no AVX-512 F, BW, DQ and VL among the flags";
    else if (f->best = MG_TIER_AVX512, !flag(have, "avx512_vnni"))
        why = "no AVX512_VNNI among the flags";
    else if (f->best = MG_TIER_VNNI, !flag(have, "avx512_bf16"))
        why = "no AVX512_BF16 among the flags";
    else if (f->best = MG_TIER_BF16, !flags(have, amx))
        why = "no AMX tiles among the flags";
    else
        f->best = MG_TIER_AMX, why = "this is the highest tier";
    snprintf(f->reason, sizeof f->reason, "%s", why);
    f->tier = f->best;
    return true;
}

static void check_isa(struct mg_doctor *d) {
    const struct mg_features *f = &d->features;
    const char *guest = "give the virtual machine the host's processor: qemu -cpu host, or "
                        "<cpu mode='host-passthrough'/> by virsh edit";
    if (*d->root && !features_of_root(d)) return;
    if (!*d->root) mg_features_detect(&d->features);
    if (*f->warning)
        mg_doctor_say(d, MG_LEVEL_WARNING, "isa-override",
                      "The setting has no effect, so something other than intended is run.",
                      "unset MARGAY_CPU", "%s", f->warning);
    const char *name = mg_tier_name(f->tier), *best = mg_tier_name(f->best);
    const char *slow = "Without AVX2 the plain C kernels run, which take tens of times as long.";
    if (f->tier < f->best)
        mg_doctor_say(d, f->tier == MG_TIER_REF ? MG_LEVEL_PROBLEM : MG_LEVEL_WARNING, "isa",
                      f->tier == MG_TIER_REF ? slow
                                             : "Better kernels are kept from use by a setting.",
                      "unset MARGAY_CPU", "instruction set: %s, this machine has %s (%s)", name,
                      best, f->reason);
    else if (f->tier == MG_TIER_REF)
        mg_doctor_say(d, MG_LEVEL_PROBLEM, "isa", slow,
                      f->hypervisor ? guest
                                    : "use a processor with AVX2 (Intel from 2013, AMD from 2015)",
                      "instruction set: %s, none of the fast ones (%s)", name, f->reason);
    else if (strstr(f->reason, "XCR0") || strstr(f->reason, "arch_prctl"))
        mg_doctor_say(d, MG_LEVEL_WARNING, "isa",
                      "The processor has faster instructions than the system lets programs use.",
                      f->hypervisor ? guest
                                    : "boot Linux 5.16 or later, without clearcpuid= or noxsave",
                      "instruction set: %s (%s)", name, f->reason);
    else if (f->tier < MG_TIER_VNNI && f->tier != MG_TIER_AVXVNNI)
        mg_doctor_say(d, MG_LEVEL_NOTE, "isa",
                      "8-bit products take twice as long as with VNNI, many times as with AMX.",
                      f->hypervisor ? guest : "use a processor with VNNI or AMX (bench compares)",
                      "instruction set: %s (%s)", name, f->reason);
    else
        mg_doctor_say(d, MG_LEVEL_OK, "isa", NULL, NULL, "instruction set: %s (%s)%s%s", name,
                      f->reason, *f->brand ? ", " : "", f->brand);
}

/* --- cores */
/* Physical cores among all processors that the system tells of; 0 when it tells of none. */
static int cores_of_machine(struct mg_doctor *d) {
    int n = 0;
    for (int c = 0; c < MG_MAX_CPU; c++) {
        char path[128];
        snprintf(path, sizeof path, CPU "/cpu%d/topology", c);
        if (!mg_doctor_exists(d, path)) continue;
        snprintf(path, sizeof path, CPU "/cpu%d/topology/core_cpus_list", c);
        const char *list = mg_doctor_read(d, path);
        snprintf(path, sizeof path, CPU "/cpu%d/topology/thread_siblings_list", c);
        if (!list) list = mg_doctor_read(d, path);
        n += !list || strtol(list, NULL, 10) == c; /* lists ascend: the core's lowest counts */
    }
    return n;
}

static void check_cores(struct mg_doctor *d) {
    const struct mg_topology *t = &d->topology;
    int all = cores_of_machine(d);
    bool siblings = t->n_affinity > t->n_core, masked = t->n_affinity < t->n_online;
    const char *range = mg_opt_text(d->o, MG_OPT_CPU_RANGE, NULL);
    const char *widen =
        range ? "leave --cpu-range out"
              : mg_doctor_by_place(d,
                                   mg_doctor_text(d,
                                                  "systemctl set-property UNIT AllowedCPUs=0-%d "
                                                  "(or taskset -c 0-%d margay ...)",
                                                  t->n_online - 1, t->n_online - 1),
                                   mg_doctor_text(d, "docker update --cpuset-cpus 0-%d CONTAINER",
                                                  t->n_online - 1),
                                   "ask for whole processors: resources.requests.cpu = "
                                   "limits.cpu under the static CPU manager",
                                   "widen the container's cpuset");
    if (masked && siblings && all > t->n_core)
        mg_doctor_say(d, MG_LEVEL_WARNING, "smt",
                      "Two siblings share one core's arithmetic, so they are worth one thread.",
                      widen,
                      "the affinity mask's %d processors are siblings on %d core%s, while the "
                      "machine has %d",
                      t->n_affinity, t->n_core, t->n_core == 1 ? "" : "s", all);
    else if (masked)
        mg_doctor_say(d, t->n_core == 1 ? MG_LEVEL_WARNING : MG_LEVEL_NOTE, "cpuset",
                      "Time to the first word is in inverse proportion to the cores.", widen,
                      "the affinity mask (cpuset) allows %d of %d processors, %d core%s",
                      t->n_affinity, t->n_online, t->n_core, t->n_core == 1 ? "" : "s");
    else if (t->n_core == 1)
        mg_doctor_say(d, MG_LEVEL_WARNING, "cores",
                      "Time to the first word is in inverse proportion to the cores.",
                      "give the machine more processors", "one core");
    else
        mg_doctor_say(d, MG_LEVEL_OK, "cores", NULL, NULL, "cores: %d (%d processors), %d thread%s",
                      t->n_core, t->n_online, d->n_thread, d->n_thread == 1 ? "" : "s");
    if (d->n_thread > t->n_core)
        mg_doctor_say(
            d, MG_LEVEL_WARNING, "threads",
            "Threads beyond the cores share a core (SMT siblings) and wait for each "
            "other at every matrix.",
            mg_doctor_text(d, "margay serve --threads %d (or leave --threads out)", t->n_thread),
            "--threads %d on %d core%s", d->n_thread, t->n_core, t->n_core == 1 ? "" : "s");
    else if (d->n_thread > t->n_thread && t->quota > 0)
        mg_doctor_say(
            d, MG_LEVEL_WARNING, "threads",
            "Threads beyond the quota use it up early and then all stand still until "
            "the next period.",
            mg_doctor_text(d, "margay serve --threads %d (or leave --threads out)", t->n_thread),
            "--threads %d under a quota of %.1f processors", d->n_thread, t->quota);
}

static void check_quota(struct mg_doctor *d) {
    const struct mg_topology *t = &d->topology;
    char path[320];
    uint64_t periods = 0, throttled = 0;
    if (!(t->quota > 0) || t->quota >= t->n_core_near) return;
    snprintf(path, sizeof path, "%s/cpu.stat", t->quota_path);
    const char *stat = mg_doctor_read(d, path);
    bool known = stat && mg_doctor_field(stat, "nr_periods", &periods) &&
                 mg_doctor_field(stat, "nr_throttled", &throttled) && periods > 0;
    const char *share = known ? mg_doctor_text(d, "; so far throttled in %.0f %% of the periods",
                                               100.0 * (double)throttled / (double)periods)
                              : "";
    mg_doctor_say(
        d, MG_LEVEL_WARNING, "quota",
        "Cores above the quota stand idle, and threads are stopped when it is used up.",
        mg_doctor_by_place(
            d, mg_doctor_text(d, "systemctl set-property UNIT CPUQuota=%d%%", 100 * t->n_core_near),
            mg_doctor_text(d, "docker update --cpus %d CONTAINER", t->n_core_near),
            mg_doctor_text(d, "kubectl set resources deployment/NAME --limits=cpu=%d",
                           t->n_core_near),
            mg_doctor_text(d, "raise the container's CPU limit to %d", t->n_core_near)),
        "a quota of %.4g processors (%s) on %d cores: %d thread%s%s", t->quota, t->quota_path,
        t->n_core_near, t->n_thread, t->n_thread == 1 ? "" : "s", share);
}

/* --- NUMA */
static void check_numa(struct mg_doctor *d) {
    const struct mg_topology *t = &d->topology;
    struct mg_buf plan = {0}, mend = {0};
    if (t->n_node < 2) return;
    for (int i = 0, shown = 0; i < t->n_core;) {
        int node = t->node[i], first = i;
        char path[128], key[64];
        uint64_t kb = 0;
        while (i < t->n_core && t->node[i] == node) i++;
        snprintf(path, sizeof path, NODE "/node%d/meminfo", node);
        snprintf(key, sizeof key, "Node %d MemTotal:", node);
        const char *text = mg_doctor_read(d, path);
        mg_buf_printf(&plan, "%snode %d: %d cores from processor %d", shown ? ", " : "", node,
                      i - first, t->cpu[first]);
        if (text && mg_doctor_field(text, key, &kb))
            mg_buf_printf(&plan, ", %.1f GB", (double)kb * 1024 / GB);
        mg_buf_printf(&mend, "%snumactl --cpunodebind=%d --membind=%d margay serve --port %d",
                      shown ? " & " : "", node, node, 8080 + shown);
        shown++;
    }
    if (!plan.data || !mend.data || plan.failed || mend.failed)
        d->failed = true;
    else
        mg_doctor_say(d, MG_LEVEL_WARNING, "numa",
                      "One process keeps to one node's cores, since weights read from another "
                      "node's memory are slow; the other nodes need a process of their own.",
                      mg_doctor_text(d, "%s", (const char *)mend.data),
                      "%d NUMA nodes (%s); %d threads on the first of these use %d of %d cores",
                      t->n_node, (const char *)plan.data, d->n_thread, t->n_core_near, t->n_core);
    mg_buf_free(&plan);
    mg_buf_free(&mend);
}

/* --- clock */
/* Powersave of intel_pstate and amd-pstate scales with load; what counts there is the preference.
 */
static bool saves_power(struct mg_doctor *d, int cpu, const char **what) {
    char path[128];
    snprintf(path, sizeof path, CPU "/cpu%d/cpufreq/scaling_governor", cpu);
    const char *governor = mg_doctor_read(d, path);
    if (!governor || strcmp(governor, "powersave") != 0) return false;
    snprintf(path, sizeof path, CPU "/cpu%d/cpufreq/scaling_driver", cpu);
    const char *driver = mg_doctor_read(d, path);
    snprintf(path, sizeof path, CPU "/cpu%d/cpufreq/energy_performance_preference", cpu);
    const char *wish = mg_doctor_read(d, path);
    *what = "governor powersave";
    if (!driver || (strcmp(driver, "intel_pstate") && strcmp(driver, "amd-pstate-epp") &&
                    strcmp(driver, "amd_pstate_epp")))
        return true;
    if (!wish || (strcmp(wish, "power") && strcmp(wish, "balance_power"))) return false;
    *what = mg_doctor_text(d, "governor powersave with preference %s", wish);
    return true;
}

static void check_clock(struct mg_doctor *d) {
    const struct mg_topology *t = &d->topology;
    const char *what = "", *prefix = d->place == MG_PLACE_HOST ? "" : "on the host: ";
    int slow = 0, capped = 0;
    double worst = 1;
    for (int i = 0; i < t->n_core; i++) {
        char path[128];
        uint64_t most, able;
        slow += saves_power(d, t->cpu[i], &what);
        snprintf(path, sizeof path, CPU "/cpu%d/cpufreq/scaling_max_freq", t->cpu[i]);
        bool both = mg_doctor_number(d, path, &most);
        snprintf(path, sizeof path, CPU "/cpu%d/cpufreq/cpuinfo_max_freq", t->cpu[i]);
        if (!both || !mg_doctor_number(d, path, &able) || able == 0) continue;
        double share = (double)most / (double)able;
        capped += share < 0.9;
        if (share < worst) worst = share;
    }
    if (slow)
        mg_doctor_say(d, MG_LEVEL_WARNING, "governor",
                      "The clock stays low, and with it everything that is computed.",
                      mg_doctor_text(d, "%ssudo cpupower frequency-set -g performance", prefix),
                      "%s on %d of %d cores", what, slow, t->n_core);
    if (capped)
        mg_doctor_say(
            d, MG_LEVEL_WARNING, "frequency", "The clock is held below what the processor can do.",
            mg_doctor_text(
                d, "%ssudo cpupower frequency-set -u $(cat " CPU "/cpu0/cpufreq/cpuinfo_max_freq)",
                prefix),
            "the clock is capped at %.0f %% on %d of %d cores", 100 * worst, capped, t->n_core);
    uint64_t off = 0, boost = 1;
    bool turbo = mg_doctor_number(d, CPU "/intel_pstate/no_turbo", &off) && off == 1;
    bool no_boost = mg_doctor_number(d, CPU "/cpufreq/boost", &boost) && boost == 0;
    if (turbo || no_boost)
        mg_doctor_say(d, MG_LEVEL_WARNING, "turbo", "The processor stays at its base clock.",
                      mg_doctor_text(d,
                                     turbo ? "%secho 0 | sudo tee " CPU "/intel_pstate/no_turbo"
                                           : "%secho 1 | sudo tee " CPU "/cpufreq/boost",
                                     prefix),
                      "turbo (boost) is switched off");
}

/* --- neighbours */
static void check_neighbours(struct mg_doctor *d) {
    const char *stat = mg_doctor_read(d, "/proc/stat"), *load = mg_doctor_read(d, "/proc/loadavg");
    double total = 0, steal = 0;
    if (stat && strncmp(stat, "cpu ", 4) == 0) {
        /* user nice system idle iowait irq softirq steal */
        char *s = (char *)(uintptr_t)stat + 4;
        for (int i = 0; i < 8; i++) {
            double v = (double)strtoull(s, &s, 10);
            total += v;
            if (i == 7) steal = v;
        }
    }
    if (total > 0 && steal / total > 0.05)
        mg_doctor_say(d, MG_LEVEL_WARNING, "steal",
                      "The host gives this virtual machine's processors to others meanwhile.",
                      "move to a machine with dedicated processors; vmstat 1 shows steal (st)",
                      "%.0f %% of the processors' time since start-up was taken by other machines",
                      100 * steal / total);
    double busy = load ? strtod(load, NULL) : 0;
    if (busy > 0.5 * d->topology.n_online)
        mg_doctor_say(d, MG_LEVEL_NOTE, "load",
                      "Others compute here, so what is measured now is less than the machine can.",
                      "top shows who; give margay processors of its own (--cpu-range)",
                      "load %.1f on %d processors in the last minute", busy, d->topology.n_online);
}

void mg_doctor_cpu(struct mg_doctor *d) {
    check_isa(d);
    check_cores(d);
    check_quota(d);
    check_numa(d);
    check_clock(d);
    check_neighbours(d);
}
