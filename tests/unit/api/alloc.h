/* Makes the n-th allocation of the code under test fail, by --wrap at linking; jansson's come
 * through src/api/json_doc.c. */
#ifndef MG_TEST_API_ALLOC_H
#define MG_TEST_API_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* The n-th allocation from now on (0: the next) fails, and none after it; SIZE_MAX: none. */
void alloc_fail_at(size_t n);
/* Whether one has failed since. */
bool alloc_has_failed(void);
/* The most bytes there were since alloc_fail_at, over what is there now. */
size_t alloc_peak(void);

#endif
