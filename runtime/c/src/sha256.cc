#include "sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace xlruntime {

namespace {

alignas(16) constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t turn(std::uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

using State = std::array<std::uint32_t, 8>;

void add_blocks_anywhere(State& state, const std::uint8_t* data, std::size_t blocks) {
  std::uint32_t w[64];
  for (; blocks > 0; --blocks, data += 64) {
    for (int i = 0; i < 16; ++i) {
      w[i] = std::uint32_t{data[4 * i]} << 24 | std::uint32_t{data[4 * i + 1]} << 16 |
             std::uint32_t{data[4 * i + 2]} << 8 | data[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t s0 = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
      const std::uint32_t s1 = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t t1 =
          h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const std::uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#if defined(__x86_64__)

bool has_sha_instructions() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29) != 0;
}

// Four rounds an instruction pair. The instructions want the state as (a, b, e, f) and (c, d, g, h), high to low.
__attribute__((target("sha,sse4.1,ssse3"))) void add_blocks_x86(State& state, const std::uint8_t* data,
                                                                std::size_t blocks) {
  const auto load = [](const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i half = _mm_shuffle_epi32(load(&state[0]), 0xb1), other = _mm_shuffle_epi32(load(&state[4]), 0x1b);
  __m128i abef = _mm_alignr_epi8(half, other, 8), cdgh = _mm_blend_epi16(other, half, 0xf0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[16];  // the schedule, four words each
    for (int i = 0; i < 16; ++i) {
      if (i < 4) {
        w[i] = _mm_shuffle_epi8(load(data + 16 * i), big_endian);
      } else {
        const __m128i seventh = _mm_alignr_epi8(w[i - 1], w[i - 2], 4);
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]), seventh);
        w[i] = _mm_sha256msg2_epu32(sum, w[i - 1]);
      }
      const __m128i rounds = _mm_add_epi32(w[i], load(&kRounds[4 * i]));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, rounds);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(rounds, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  half = _mm_shuffle_epi32(abef, 0x1b);
  other = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[0]), _mm_blend_epi16(half, other, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[4]), _mm_alignr_epi8(other, half, 8));
}

#endif

void add_blocks(State& state, const std::uint8_t* data, std::size_t blocks) {
#if defined(__x86_64__)
  static const bool is_fast = has_sha_instructions();
  if (is_fast) return add_blocks_x86(state, data, blocks);
#endif
  add_blocks_anywhere(state, data, blocks);
}

}  // namespace

void Sha256::update(const void* data, std::size_t size) {
  if (size == 0) return;
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const std::size_t held = size_ % 64;
  size_ += size;
  if (held > 0) {
    const std::size_t taken = std::min(size, 64 - held);
    std::memcpy(block_.data() + held, bytes, taken);
    bytes += taken;
    size -= taken;
    if (held + taken < 64) return;
    add_blocks(state_, block_.data(), 1);
  }
  add_blocks(state_, bytes, size / 64);
  if (size % 64 > 0) std::memcpy(block_.data(), bytes + size / 64 * 64, size % 64);
}

std::string Sha256::hexadecimal() {
  const std::uint64_t bits = size_ * 8;
  static const std::uint8_t padding[64] = {0x80};
  update(padding, size_ % 64 < 56 ? 56 - size_ % 64 : 120 - size_ % 64);
  std::uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
  update(length, sizeof length);
  std::string text;
  static const char* const digits = "0123456789abcdef";
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += digits[word >> shift & 15];
  }
  return text;
}

}  // namespace xlruntime
