/* weights/fits.h - what else a checkpoint must be besides having every tensor that is looked for:
 * nothing that the configuration leaves out without a word, no two heads. Asked wherever a
 * checkpoint is taken in, to be computed with or to be converted. */
#ifndef MG_WEIGHTS_FITS_H
#define MG_WEIGHTS_FITS_H

#include "weights/config.h"
#include "weights/weights.h"

/* Codes tensor_unexpected, head_conflict. */
enum mg_status mg_checkpoint_fits(const struct mg_weights *w, const struct mg_config *c,
                                  struct mg_err *err);

#endif
