/* net/part.h - a file on its way: FILE.part with the bytes, FILE.part.state with which are there.
 *
 * The file is cut into pieces of equal length (the last may be shorter); each fills from its front.
 * The state is text, one line that says what the file is and one of fixed width per piece:
 *
 *     margay-part-1 SIZE PIECE IDENTITY
 *     GOT                                bytes of piece 0 that are there, 20 digits
 *     GOT ...
 *
 * A line is rewritten in place right after its bytes were written, so a process that is killed
 * loses nothing. After a power cut the two may differ: the checksum of the whole file decides in
 * the end, not the state. FILE.part has the full length from the start, with its blocks reserved
 * where the file system can, so a full disk is noticed before anything is fetched. One thread, one
 * process: the caller keeps others out of the folder.
 */
#ifndef MG_NET_PART_H
#define MG_NET_PART_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MG_PART_IDENTITY 80 /* bytes, with the zero byte */
#define MG_PART_MAX_PIECES ((size_t)1 << 20)

struct mg_part {
    char *path, *part_path, *state_path; /* owned */
    char identity[MG_PART_IDENTITY];     /* of the content: no blanks, not empty */
    uint64_t size;                       /* bytes in all */
    uint64_t piece;                      /* bytes of a piece, > 0 */
    uint64_t *got;                       /* n_piece, owned: bytes from the piece's front */
    size_t n_piece;                      /* 0 when size is 0 */
    size_t n_head;                       /* bytes of the state's first line */
    int fd, state_fd;                    /* -1 when closed */
};

/* Goes on with what an earlier run left if identity and size are the same, else begins anew, in
 * pieces of `piece` bytes. Close it on failure too. */
enum mg_status mg_part_open(struct mg_part *p, const char *path, uint64_t size, uint64_t piece,
                            const char *identity, struct mg_err *err);
/* Forgets everything fetched, and goes on in pieces of `piece` bytes. */
enum mg_status mg_part_restart(struct mg_part *p, uint64_t piece, struct mg_err *err);
/* Adds n bytes behind those that piece i has; the caller knows that they fit. */
enum mg_status mg_part_write(struct mg_part *p, size_t i, const void *data, size_t n,
                             struct mg_err *err);
/* Where piece i begins and ends in the file. */
uint64_t mg_part_begin(const struct mg_part *p, size_t i);
uint64_t mg_part_end(const struct mg_part *p, size_t i);
/* Bytes that are there. */
uint64_t mg_part_done(const struct mg_part *p);
/* Everything is there and checked: to the disk, under its own name. */
enum mg_status mg_part_finish(struct mg_part *p, struct mg_err *err);
/* Removes both files. */
void mg_part_discard(struct mg_part *p);
void mg_part_close(struct mg_part *p);

#endif
