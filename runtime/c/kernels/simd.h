// Vectors of numbers, for one instruction set: XLEXPORT_LANES numbers at once. Included by level_*.cc only.
//
// These are the vector extensions of GCC and Clang, so one source compiles for AVX-512, AVX2, SSE2 and NEON. All of it
// is in an anonymous namespace: a linker must never choose another instruction set's copy of a function.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#if !defined(__clang__)  // GCC 12 warns of what its own header leaves undefined
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// Write out all rounds of the loop that follows, so that an array of vectors stays in registers.
#if defined(__clang__)
#define XLEXPORT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define XLEXPORT_UNROLL _Pragma("GCC unroll 16")
#endif

namespace {

constexpr int kLanes = XLEXPORT_LANES;
constexpr int kPart = 16;  // numbers that are added one by one; sums of such parts are added then, which rounds less

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

inline void store(int32_t* to, Ints numbers) { memcpy(to, &numbers, sizeof numbers); }

inline Floats to_floats(Ints numbers) { return __builtin_convertvector(numbers, Floats); }

typedef int8_t Bytes __attribute__((vector_size(XLEXPORT_LANES)));

// Return kLanes numbers of 8 bits, each in a lane.
inline Ints widen(const int8_t* from) {
#if XLEXPORT_LANES == 16
  return reinterpret_cast<Ints>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif XLEXPORT_LANES == 8
  return reinterpret_cast<Ints>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  Bytes bytes;
  memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, Ints);
#endif
}

inline Floats load(const int8_t* from) { return to_floats(widen(from)); }

// Return the place of the number that lies `numbers` behind another one, which may be behind the end of an array; null
// stays null. It is only for fetching.
inline const float* behind(const float* number, int64_t numbers) {
  if (number == nullptr) return nullptr;
  return reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(number) + static_cast<uintptr_t>(numbers) * sizeof(float));
}

// Fetch n bytes into the second cache; they may be behind the end of an array.
inline void fetch_bytes(const int8_t* from, int64_t n) {
  for (int64_t k = 0; k < n; k += 64) __builtin_prefetch(from + k, 0, 2);
}

// Fetch n numbers into the second cache.
inline void fetch_numbers(const float* from, int64_t n) {
  for (int64_t k = 0; k < n; k += 16) __builtin_prefetch(behind(from, k), 0, 2);
}

// Begin to fetch the page that lies 16 KB behind a row of so many bytes, if it begins a page. Processors read ahead inside
// pages of 4 KB only, and finding a page takes long. Short rows are used faster than processors read ahead, so they are
// fetched, too. The places may be behind the end of an array.
inline void fetch_ahead(const void* row, int64_t bytes) {
  const uintptr_t place = reinterpret_cast<uintptr_t>(row);
  if (bytes <= 64) __builtin_prefetch(reinterpret_cast<const void*>(place + 2048));
  if (static_cast<int64_t>(place & 4095) >= bytes) return;
  for (int64_t k = 0; k < bytes; k += 4096) __builtin_prefetch(reinterpret_cast<const void*>(place + 16384 + k));
}

inline Floats broadcast(float number) { return number - Floats{}; }  // -0 stays -0

inline Ints broadcast(int32_t number) { return number - Ints{}; }

inline Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }

// Return the larger numbers, b if one of two is NaN: maximum(score, most) is the largest score without NaN, which the sum
// of weights shows.
inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }  // one instruction
inline Ints maximum(Ints a, Ints b) { return a > b ? a : b; }

// Return the absolute values as bits, whose order is that of the numbers, but NaN comes last.
inline Ints sizes_of(Floats numbers) { return reinterpret_cast<Ints>(numbers) & 0x7FFFFFFF; }

// Return the largest number of which these are the bits.
inline float largest_of(Ints sizes) {
  int32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits = sizes[lane] > bits ? sizes[lane] : bits;
  return reinterpret_cast<Floats>(broadcast(bits))[0];
}

inline float sum_of(Floats numbers) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += numbers[lane];
  return sum;
}

// Weights below exp(-64) = 1.6e-28 are zero. With n keys this changes a result by at most 2 n · 1.6e-28 of the largest value,
// even with 2^31 keys by less than 2^-60. All other weights are so large that their products with values, and sums of these,
// are not subnormal: Intel's processors compute those 30 times slower.
constexpr float kLeastScore = -64.0f;

// Return exp(x) of a score relative to the largest one, within 2 units of the last place for x >= -32, 4 below; 0 below
// kLeastScore. NaN stays NaN.
inline Floats exponential(Floats x) {
  const Floats least = broadcast(kLeastScore);
#if XLEXPORT_LANES == 16
  const __mmask16 kept = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(least), _CMP_NLT_UQ);
#else
  const Ints nothing = x < least;
#endif
  x = maximum(least, x);  // in this order NaN stays
  // x = n · log 2 + r, |r| <= log(2) / 2; adding and subtracting 1.5 · 2^23 rounds to a whole number
  const Floats shifted = x * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
#if defined(__FMA__) || defined(__aarch64__)
  const Floats r = x - n * 0.693147182f;  // the product is not rounded, so r is off by 2e-9 · |n| at most
#else
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
#endif
  Floats power = r * 1.38145906e-3f + 8.36871285e-3f;  // the polynomial of least relative error, 3.1e-9
  power = power * r + 4.16683890e-2f;
  power = power * r + 1.66665211e-1f;
  power = power * r + 4.99999940e-1f;
  power = power * r + 1.0f;
  power = power * r + 1.0f;
#if XLEXPORT_LANES == 16
  return reinterpret_cast<Floats>(_mm512_maskz_scalef_ps(kept, reinterpret_cast<__m512>(power), reinterpret_cast<__m512>(n)));
#else
  const Floats scale = reinterpret_cast<Floats>((reinterpret_cast<Ints>(shifted) << 23) + (127 << 23));  // 2^n
  return select(nothing, Floats{}, power * scale);
#endif
}

}  // namespace
