// Inner loops for AVX2, which build_library.py switches on for this file.
#define XLEXPORT_LEVEL avx2
#define XLEXPORT_LANES 8
#include "level.inc"
