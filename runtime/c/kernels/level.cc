// Choose the instruction set at load.
#include "level.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace xlexport {
namespace {

#if defined(__x86_64__)
// Return which registers the operating system saves: bit 2 is AVX, bits 5 to 7 are AVX-512.
unsigned saved_registers() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// AVX-512 with VNNI: only the loops for 8-bit rings have instructions of their own.
Level with_vnni() {
  Level made = level_avx512;
  made.name = "avx512vnni";
  made.int8_attention = vnni_int8_attention;
  return made;
}

const Level level_vnni = with_vnni();

const Level& best() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return level_base;
  const bool saves = (c & bit_OSXSAVE) != 0, fma = (c & bit_FMA) != 0;
  if (!saves || !fma || (saved_registers() & 0x6) != 0x6) return level_base;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return level_base;
  const unsigned wanted = bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW | bit_AVX512CD;
  if ((b & wanted) != wanted || (saved_registers() & 0xE6) != 0xE6) return level_avx2;
  return (c & bit_AVX512VNNI) != 0 ? level_vnni : level_avx512;
}

const Level& chosen() {
  const Level& most = best();
  const char* name = getenv("XLEXPORT_OPS_INSTRUCTION_SET");
  if (name == nullptr || &most == &level_base) return most;
  if (strcmp(name, "base") == 0) return level_base;
  if (strcmp(name, "avx2") == 0) return level_avx2;
  if (strcmp(name, "avx512") == 0 && &most == &level_vnni) return level_avx512;
  return most;
}
#else
const Level& chosen() { return level_base; }
#endif

const Level& found = chosen();  // when the library is loaded

}  // namespace

const Level& level() { return found; }

}  // namespace xlexport
