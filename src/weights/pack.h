/* weights/pack.h - rows of numbers to panels of whole numbers (kernels/packed.h).
 *
 * INT8: the scale of an output is its largest magnitude / 127; rounding to nearest, ties to even.
 *
 * INT4: each group of 32 gets the step that, among some tried, leaves the least squared error with
 * levels -8..7 (its sign lets the larger side have the -8). The output's scale is the largest step
 * / 15, each group's sub-scale the whole multiple of it that again leaves the least error.
 *
 * A value that is not finite makes mg_pack_panel give false. Same input, same bytes, on any
 * machine.
 */
#ifndef MG_WEIGHTS_PACK_H
#define MG_WEIGHTS_PACK_H

#include "kernels/packed.h"

/* row[i]: [k] f32 of column i of the panel, or NULL for padding. panel:
 * mg_packed_panel_bytes(kind, k) bytes; scale and sum: [32]. error: squared error of all weights
 * and the sum of their squares are added to error[0] and error[1]. */
bool mg_pack_panel(enum mg_pack kind, const float *const row[MG_PANEL], size_t k, void *panel,
                   float *scale, int32_t *sum, double error[2]);

#endif
