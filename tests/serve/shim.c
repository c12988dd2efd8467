/* shim.c - preloaded into margay serve by test_remote.py: an internet on this machine.
 *
 * Names are those of the file SHIM_NAMES, a line "NAME ADDRESS..." each; every further look-up of
 * a name takes the next address, at the end the last one again ("A,B" is both at once). Connections
 * to addresses that begin with 93.184. go to port SHIM_PORT of 127.0.0.1 in their place. Others are
 * let through as they are, so that what must not be reached could be. Every look-up and every
 * connection is a line of the file SHIM_LOG: "lookup NAME", "connect ADDRESS PORT".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[128];
    int n;
} seen[64]; /* how often each was looked up */

static void note(const char *line) {
    int fd = open(getenv("SHIM_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, strlen(line)) < 0) abort();
    close(fd);
}

static int times_before(const char *name) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < 63 && seen[i].name[0] && strcasecmp(seen[i].name, name)) i++;
    snprintf(seen[i].name, sizeof seen[i].name, "%s", name);
    int n = seen[i].n++;
    pthread_mutex_unlock(&lock);
    return n;
}

/* The addresses of the n-th look-up, separated by commas. */
static int find(const char *name, int n, char *out, size_t cap) {
    char line[512];
    FILE *f = fopen(getenv("SHIM_NAMES"), "re");
    int found = 0;
    if (!f) abort();
    while (fgets(line, sizeof line, f)) {
        char *at = NULL, *word = strtok_r(line, " \n", &at);
        if (!word || strcasecmp(word, name)) continue;
        for (int i = 0; i <= n && (word = strtok_r(NULL, " \n", &at)); i++) {
            snprintf(out, cap, "%s", word);
            found = 1;
        }
        break;
    }
    fclose(f);
    return found;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **out) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        (int (*)(const char *, const char *, const struct addrinfo *,
                 struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
    char line[300], list[300], bare[256];
    struct addrinfo numeric = hints ? *hints : (struct addrinfo){0};
    numeric.ai_flags = (numeric.ai_flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST;
    if (!name || real(name, service, &numeric, out) == 0) return 0; /* margay's own address */
    snprintf(bare, sizeof bare, "%s", name);
    if (bare[0] && bare[strlen(bare) - 1] == '.') bare[strlen(bare) - 1] = 0;
    snprintf(line, sizeof line, "lookup %s\n", bare);
    note(line);
    if (!find(bare, times_before(bare), list, sizeof list)) return EAI_NONAME;
    struct addrinfo **end = out;
    *out = NULL;
    char *at = NULL;
    for (char *word = strtok_r(list, ",", &at); word; word = strtok_r(NULL, ",", &at)) {
        numeric.ai_family = strchr(word, ':') ? AF_INET6 : AF_INET;
        if (real(word, service, &numeric, end)) abort();
        while (*end) end = &(*end)->ai_next;
    }
    return 0;
}

int connect(int fd, const struct sockaddr *to, socklen_t n) {
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    char text[INET6_ADDRSTRLEN] = "", line[100];
    const struct sockaddr_in *four = (const void *)to;
    const struct sockaddr_in6 *six = (const void *)to;
    if (to->sa_family == AF_INET) inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    if (to->sa_family == AF_INET6) inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
    if (!text[0]) return real(fd, to, n);
    snprintf(line, sizeof line, "connect %s %d\n", text, ntohs(four->sin_port));
    note(line);
    if (strncmp(text, "93.184.", 7)) return real(fd, to, n);
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)atoi(getenv("SHIM_PORT"))),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return real(fd, (struct sockaddr *)&here, sizeof here);
}
