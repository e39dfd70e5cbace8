// Vectors of numbers, for one instruction set: XLEXPORT_LANES numbers at once. Included by level_*.cc only.
//
// These are the vector extensions of GCC and Clang, so one source compiles for AVX-512, AVX2, SSE2 and NEON. All of it
// is in an anonymous namespace: a linker must never choose another instruction set's copy of a function.
#pragma once

#include <stdint.h>
#include <string.h>

// Write out all rounds of the loop that follows, so that an array of vectors stays in registers.
#if defined(__clang__)
#define XLEXPORT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define XLEXPORT_UNROLL _Pragma("GCC unroll 16")
#endif

namespace {

constexpr int kLanes = XLEXPORT_LANES;

typedef float Floats __attribute__((vector_size(4 * XLEXPORT_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * XLEXPORT_LANES)));
typedef uint32_t Unsigned __attribute__((vector_size(4 * XLEXPORT_LANES)));

inline Floats load(const float* from) {
  Floats loaded;
  memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

inline Ints load(const int32_t* from) {
  Ints loaded;
  memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

inline void store(float* to, Floats numbers) { memcpy(to, &numbers, sizeof numbers); }

inline Floats broadcast(float number) { return number - Floats{}; }  // -0 stays -0

inline Ints broadcast(int32_t number) { return number - Ints{}; }

inline Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }  // one instruction
inline Floats minimum(Floats a, Floats b) { return a < b ? a : b; }

inline float sum_of(Floats numbers) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += numbers[lane];
  return sum;
}

// Return exp(x) within 2 units of the last place; exp(-87) below -87, so hidden scores never become infinities or NaN.
inline Floats exponential(Floats x) {
  x = maximum(minimum(x, broadcast(88.0f)), broadcast(-87.0f));
  // x = n · log 2 + r, |r| <= log(2) / 2; adding and subtracting 1.5 · 2^23 rounds to a whole number
  const Floats shifted = x * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats power = r * 1.3981999507e-3f + 8.3334519073e-3f;  // Taylor's series, its last terms adjusted to the interval
  power = power * r + 4.1665795894e-2f;
  power = power * r + 1.6666665459e-1f;
  power = power * r + 5.0000001201e-1f;
  power = power * r * r + r + 1.0f;
  const Ints exponent = (reinterpret_cast<Ints>(shifted) - 0x4B400000 + 127) << 23;
  return power * reinterpret_cast<Floats>(exponent);
}

}  // namespace
