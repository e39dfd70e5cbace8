// The inner loops of kernels, compiled once for each instruction set; the best one that the processor has runs.
#pragma once

#include "band_work.h"
#include "chunk_work.h"
#include "local_attention_block.h"
#include "relative_attention_step.h"
#include "ring_work.h"

namespace xlexport {

// The inner loops of one instruction set. Add a function pointer for each `.inc` file.
struct Level {
  const char* name;
  AttentionLoops attention;
  Int8AttentionLoops int8_attention;
  BandLoops band;
  ChunkLoops chunk;
  FewLoops few;
  LocalLoops local;
};

extern const Level level_base;  // what every processor of this architecture has: SSE2 or NEON
#if defined(__x86_64__)
extern const Level level_avx2;
extern const Level level_avx512;
extern const Int8AttentionLoops vnni_int8_attention;  // for processors with AVX-512 that also have its dot products
#endif

// Return the level for this processor. XLEXPORT_OPS_INSTRUCTION_SET (`base`, `avx2`, `avx512`, `avx512vnni`) can only lower it.
const Level& level();

}  // namespace xlexport
