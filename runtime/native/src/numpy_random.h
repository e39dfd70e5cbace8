// The random numbers of NumPy's default generator, so that a seed draws the same tokens as in Python.
#pragma once

#include <cstdint>
#include <vector>

namespace xlruntime {

// PCG64 (O'Neill 2014, XSL-RR, 128 bits of state), seeded as NumPy's SeedSequence does.
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint64_t seed);

  static NumpyRandom from_system();  // another seed for each call

  std::uint64_t next();
  double uniform();  // at least 0, below 1

 private:
  struct Wide {  // an unsigned number of 128 bits
    std::uint64_t high, low;
  };

  explicit NumpyRandom(const std::vector<std::uint32_t>& entropy);

  static Wide add(Wide a, Wide b);
  static Wide multiply(Wide a, Wide b);
  void step();

  Wide state_, increment_;
};

}  // namespace xlruntime
