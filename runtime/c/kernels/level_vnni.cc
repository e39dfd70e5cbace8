// The loops for 8-bit rings with the dot products of AVX512-VNNI, which build_library.py switches on for this file.
#define XLEXPORT_LANES 16
#include "level.h"
#include "simd.h"

#include "product.inc"
#include "integer_product.inc"
#include "turn.inc"

#include "relative_attention.inc"
#include "relative_attention_int8.inc"
#include "relative_attention_few.inc"

namespace xlexport {

extern const Int8AttentionLoops vnni_int8_attention = attention::int8_loops();

}  // namespace xlexport
