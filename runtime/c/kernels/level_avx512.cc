// Inner loops for AVX512, which build_library.py switches on for this file.
#define XLEXPORT_LEVEL avx512
#define XLEXPORT_LANES 16
#include "level.inc"
