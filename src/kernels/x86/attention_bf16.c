/* kernels/x86/attention_bf16.c - attention on bf16 keys and values by vdpbf16ps; on f32 ones it is
 * avx512's. See attention.h. */
#define MG_DOT_BF16
#include "kernels/x86/attention.h"
#include "kernels/x86/x86.h"

void mg_bf16_init_attention(struct mg_kernels *t) {
    init_attention(t);
}
