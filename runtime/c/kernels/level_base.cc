// Inner loops for every processor of this architecture: SSE2 or NEON.
#define XLEXPORT_LEVEL base
#define XLEXPORT_LANES 4
#include "level.inc"
