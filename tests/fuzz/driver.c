/* tests/fuzz/driver.c - runs a fuzz target over the files of its committed corpus, without
 * libFuzzer.
 *
 *     fuzz_NAME_replay FOLDER|FILE...
 *
 * Each input is handed over in a block of exactly its size, so that reading past its end is seen by
 * the address sanitizer, and has 10 seconds. Prints "N inputs"; exit 1 when there are none, since a
 * corpus that got lost must not pass. A failing input is named on stderr whichever way it ends the
 * process.
 */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECONDS 10

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Of a sanitizer's runtime, where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static char current[4096]; /* the input being run */

static void name_input(void) {
    static const char head[] = "fuzz input: ";
    ssize_t ignored = write(STDERR_FILENO, head, sizeof head - 1);
    ignored += write(STDERR_FILENO, current, strlen(current));
    ignored += write(STDERR_FILENO, "\n", 1);
    (void)ignored;
}

static void on_signal(int sig) {
    name_input();
    signal(sig, SIG_DFL);
    raise(sig);
}

static int run_file(const char *path) {
    snprintf(current, sizeof current, "%s", path);
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0 || st.st_size < 0) {
        perror(path);
        exit(1);
    }
    size_t n = (size_t)st.st_size;
    uint8_t *data = malloc(n ? n : 1);
    if (!data || fread(data, 1, n, f) != n) {
        fprintf(stderr, "can't read %s\n", path);
        exit(1);
    }
    fclose(f);
    alarm(SECONDS);
    LLVMFuzzerTestOneInput(data, n);
    alarm(0);
    free(data);
    return 1;
}

static int run_folder(const char *path) {
    struct dirent **entry;
    int n = scandir(path, &entry, NULL, alphasort), count = 0;
    if (n < 0) {
        perror(path);
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        char file[4096];
        struct stat st;
        int len = snprintf(file, sizeof file, "%s/%s", path, entry[i]->d_name);
        if (len > 0 && (size_t)len < sizeof file && stat(file, &st) == 0 && S_ISREG(st.st_mode))
            count += run_file(file);
        free(entry[i]);
    }
    free(entry);
    return count;
}

int main(int argc, char **argv) {
    static const int fatal[] = {SIGALRM, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
    int first = __sanitizer_set_death_callback ? 1 : 6; /* a sanitizer handles the others itself */
    for (int i = 0; i < first; i++) signal(fatal[i], on_signal);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(name_input);
    int count = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        count += stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? run_folder(argv[i])
                                                                : run_file(argv[i]);
    }
    printf("%d inputs\n", count);
    return count ? 0 : 1;
}
