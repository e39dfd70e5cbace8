// The inputs of an operator: what their shapes must be, and how they are read.
#pragma once

#include "kernel.h"

namespace xlexport {

// An input: its place, its name in messages, and a letter for each axis, such as "BHCd". Axes of one letter have one
// size in all inputs; that of '1' is 1.
struct Input {
  size_t place;
  const char *name, *axes;
};

// The sizes of axes by their letters.
struct Sizes {
  int64_t of[128];

  int64_t& operator[](char letter) { return of[static_cast<int>(letter)]; }
};

// Read n inputs in this order; return an error unless their shapes agree. The first axis of a letter sets its size.
inline OrtStatus* read_inputs(const Context& run, const Input* inputs, int n, Tensor* tensors, Sizes* sizes) {
  for (int64_t& size : sizes->of) size = -1;
  (*sizes)['1'] = 1;
  for (int k = 0; k < n; ++k) {
    const auto& [place, name, axes] = inputs[k];
    int rank = 0;
    while (axes[rank] != '\0') ++rank;
    XLEXPORT_TRY(run.input(place, &tensors[k]));
    XLEXPORT_TRY(run.require_rank(name, tensors[k], rank));
    for (int axis = 0; axis < rank; ++axis) {
      int64_t& size = (*sizes)[axes[axis]];
      if (size < 0) size = tensors[k].shape[axis];
      XLEXPORT_TRY(run.require_axis(name, tensors[k], axis, size));
    }
  }
  return nullptr;
}

}  // namespace xlexport
