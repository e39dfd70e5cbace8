// Functions of headers that inner loops include. Each instruction set must have its own copy: if a linker kept one copy
// for all, it might be one that this processor cannot run.
#pragma once

#define XLEXPORT_INLINE inline __attribute__((always_inline))
