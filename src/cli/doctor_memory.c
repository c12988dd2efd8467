/* cli/doctor_memory.c - memory: is there room for the weights and a question, who sets the limit,
 * and what slows it down.
 *
 * The weights are a mapped file: where they do not fit, the system drops and rereads them for every
 * token, which is not an error but makes an answer take minutes. So "fits" is the first question.
 */
#include "cli/doctor.h"

#include <stdio.h>
#include <string.h>

#define GB 1e9
#define SWAP_MATTERS ((uint64_t)64 << 20) /* bytes: less is what systems move out by themselves */

static const char *room(struct mg_doctor *d, double bytes) {
    const char *amount = mg_doctor_text(d, "%.0fg", bytes / GB + 1);
    return mg_doctor_by_place(
        d, mg_doctor_text(d, "systemctl set-property UNIT MemoryMax=%.0fG", bytes / GB + 1),
        mg_doctor_text(d, "docker update --memory %s --memory-swap %s CONTAINER", amount, amount),
        mg_doctor_text(d, "kubectl set resources deployment/NAME --limits=memory=%.0fGi",
                       bytes / GB + 1),
        mg_doctor_text(d, "raise the container's memory limit to %s", amount));
}

static void check_room(struct mg_doctor *d) {
    const struct mg_topology *t = &d->topology;
    double limit = (double)t->memory_limit, total = (double)d->memory_total;
    bool group = limit > 0 && (total <= 0 || limit < total);
    double most = group ? limit : total, need = d->need_bytes;
    static const char why[] = "Weights that do not fit are read from the disk anew for every "
                              "token, or the process is killed.";
    if (most <= 0) return;
    const char *other = d->weights == MG_WEIGHTS_INT4
                            ? ""
                            : ", or --weights int4, which needs a third less than int8";
    if (most < need && group)
        mg_doctor_say(
            d, MG_LEVEL_PROBLEM, "memory-limit", why,
            mg_doctor_text(d, "%s%s", room(d, need), other),
            "the cgroup's memory limit is %.2f GB (%s), %s takes %.2f GB: %.2f of weights "
            "and what a question needs",
            most / GB, t->memory_path, d->model, need / GB, d->weight_bytes / GB);
    else if (most < need)
        mg_doctor_say(d, MG_LEVEL_PROBLEM, "memory", why,
                      mg_doctor_text(d, "give the machine %.0f GB%s", need / GB + 1, other),
                      "%.2f GB of memory, %s takes %.2f GB: %.2f of weights and what a question "
                      "needs",
                      most / GB, d->model, need / GB, d->weight_bytes / GB);
    else if (d->memory_available && (double)d->memory_available < need)
        mg_doctor_say(d, MG_LEVEL_WARNING, "memory", why,
                      "ps -eo pid,rss,comm --sort=-rss | head shows who has it",
                      "%.2f GB of %.2f GB are available, %s takes %.2f GB",
                      (double)d->memory_available / GB, total / GB, d->model, need / GB);
    else
        mg_doctor_say(d, MG_LEVEL_OK, "memory", NULL, NULL,
                      "memory: %.1f GB%s, %s takes %.2f GB for one question", most / GB,
                      group ? " (cgroup)" : "", d->model, need / GB);
}

static void check_swap(struct mg_doctor *d, const char *meminfo) {
    uint64_t total, left;
    if (!mg_doctor_field(meminfo, "SwapTotal:", &total) ||
        !mg_doctor_field(meminfo, "SwapFree:", &left) || left > total)
        return;
    uint64_t used = (total - left) * 1024;
    if (used < SWAP_MATTERS) return;
    mg_doctor_say(d, MG_LEVEL_WARNING, "swap",
                  "Memory was short: caches and contexts that went to the disk come back slowly.",
                  mg_doctor_text(d,
                                 "%ssudo swapoff -a && sudo swapon -a (when memory is free), and "
                                 "vm.swappiness=1",
                                 d->place == MG_PLACE_HOST ? "" : "on the host: "),
                  "%.2f GB of %.2f GB swap in use", (double)used / GB, (double)total * 1024 / GB);
}

static void check_pages(struct mg_doctor *d) {
    const char *prefix = d->place == MG_PLACE_HOST ? "" : "on the host: ";
    const char *text = mg_doctor_read(d, "/sys/kernel/mm/transparent_hugepage/enabled");
    if (text && strstr(text, "[never]"))
        mg_doctor_say(
            d, MG_LEVEL_NOTE, "huge-pages",
            "Buffers, keys and values lie in small pages, which cost more time to find; the "
            "mapped weights do in any case.",
            mg_doctor_text(d,
                           "%secho always | sudo tee "
                           "/sys/kernel/mm/transparent_hugepage/enabled",
                           prefix),
            "transparent huge pages: never");
    else if (text)
        mg_doctor_say(d, MG_LEVEL_OK, "huge-pages", NULL, NULL, "transparent huge pages: %s",
                      strstr(text, "[always]") ? "always" : "when asked for (madvise)");
    uint64_t mode;
    if (mg_doctor_number(d, "/proc/sys/vm/overcommit_memory", &mode) && mode == 2)
        mg_doctor_say(d, MG_LEVEL_WARNING, "overcommit",
                      "Address space for a whole context is reserved and used bit by bit; strict "
                      "accounting counts all of it, and refuses long contexts.",
                      mg_doctor_text(d, "%ssudo sysctl vm.overcommit_memory=0", prefix),
                      "strict memory accounting (vm.overcommit_memory=2)");
}

void mg_doctor_memory(struct mg_doctor *d) {
    const char *meminfo = mg_doctor_read(d, "/proc/meminfo");
    uint64_t kb;
    if (meminfo && mg_doctor_field(meminfo, "MemTotal:", &kb)) d->memory_total = kb * 1024;
    if (meminfo && mg_doctor_field(meminfo, "MemAvailable:", &kb)) d->memory_available = kb * 1024;
    check_room(d);
    if (meminfo) check_swap(d, meminfo);
    check_pages(d);
}
