#include "numpy_random.h"

#include <array>
#include <random>

namespace xlruntime {
namespace {

// The mixing of SeedSequence: a pool of four words, into which all words of the seed go, and from which the state
// comes.
constexpr std::size_t kPool = 4;

class SeedPool {
 public:
  explicit SeedPool(const std::vector<std::uint32_t>& entropy) {
    for (std::size_t i = 0; i < kPool; ++i) pool_[i] = hashed(i < entropy.size() ? entropy[i] : 0);
    for (std::size_t from = 0; from < kPool; ++from) {
      for (std::size_t to = 0; to < kPool; ++to) {
        if (from != to) pool_[to] = mixed(pool_[to], hashed(pool_[from]));
      }
    }
    for (std::size_t from = kPool; from < entropy.size(); ++from) {
      for (std::uint32_t& word : pool_) word = mixed(word, hashed(entropy[from]));
    }
  }

  // Four words of 64 bits, the lower half of each first.
  std::array<std::uint64_t, 4> state() const {
    std::uint32_t factor = 0x8b51f9dd;
    std::array<std::uint64_t, 4> words{};
    for (std::size_t i = 0; i < 8; ++i) {
      std::uint32_t value = pool_[i % kPool] ^ factor;
      factor *= 0x58f38ded;
      value *= factor;
      value ^= value >> 16;
      words[i / 2] |= static_cast<std::uint64_t>(value) << (i % 2 * 32);
    }
    return words;
  }

 private:
  std::uint32_t hashed(std::uint32_t value) {
    value ^= factor_;
    factor_ *= 0x931e8875;
    value *= factor_;
    return value ^ value >> 16;
  }

  static std::uint32_t mixed(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t value = 0xca01f9dd * a - 0x4973f715 * b;
    return value ^ value >> 16;
  }

  std::uint32_t factor_ = 0x43b0d7e5;
  std::array<std::uint32_t, kPool> pool_{};
};

std::vector<std::uint32_t> words_of(std::uint64_t seed) {
  const auto low = static_cast<std::uint32_t>(seed), high = static_cast<std::uint32_t>(seed >> 32);
  if (high == 0) return {low};
  return {low, high};
}

}  // namespace

NumpyRandom::NumpyRandom(std::uint64_t seed) : NumpyRandom(words_of(seed)) {}

NumpyRandom::NumpyRandom(const std::vector<std::uint32_t>& entropy) {
  const auto [first_high, first_low, stream_high, stream_low] = SeedPool(entropy).state();
  increment_ = {stream_high << 1 | stream_low >> 63, stream_low << 1 | 1};
  state_ = {0, 0};
  step();
  state_ = add(state_, {first_high, first_low});
  step();
}

NumpyRandom NumpyRandom::from_system() {
  std::random_device device;
  std::vector<std::uint32_t> entropy(kPool);
  for (std::uint32_t& word : entropy) word = device();
  return NumpyRandom(entropy);
}

std::uint64_t NumpyRandom::next() {
  step();
  const std::uint64_t value = state_.high ^ state_.low;
  const unsigned turn = static_cast<unsigned>(state_.high >> 58);
  return value >> turn | value << ((64 - turn) % 64);
}

double NumpyRandom::uniform() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }  // 2^53

NumpyRandom::Wide NumpyRandom::add(Wide a, Wide b) {
  const std::uint64_t low = a.low + b.low;
  return {a.high + b.high + (low < a.low ? 1 : 0), low};
}

NumpyRandom::Wide NumpyRandom::multiply(Wide a, Wide b) {
  constexpr std::uint64_t kHalf = 0xffffffff;
  const std::uint64_t low_low = (a.low & kHalf) * (b.low & kHalf), low_high = (a.low & kHalf) * (b.low >> 32);
  const std::uint64_t high_low = (a.low >> 32) * (b.low & kHalf), high_high = (a.low >> 32) * (b.low >> 32);
  const std::uint64_t middle = (low_low >> 32) + (low_high & kHalf) + (high_low & kHalf);
  const std::uint64_t carried = high_high + (low_high >> 32) + (high_low >> 32) + (middle >> 32);
  return {carried + a.high * b.low + a.low * b.high, middle << 32 | (low_low & kHalf)};
}

void NumpyRandom::step() { state_ = add(multiply(state_, {0x2360ed051fc65da4, 0x4385df649fccf645}), increment_); }

}  // namespace xlruntime
