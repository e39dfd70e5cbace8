// Rows of tensors along any axis: what rings are made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "safetensors.h"

namespace xlruntime {

// A tensor as blocks of rows: `outer` blocks of `rows` rows of `row_bytes` each.
struct RowShape {
  std::int64_t outer = 1, rows = 1;
  std::size_t row_bytes = 0;

  RowShape(const std::vector<std::int64_t>& shape, std::size_t axis, std::size_t item_size);

  char* row(void* data, std::int64_t block, std::int64_t row) const {
    return static_cast<char*>(data) + static_cast<std::size_t>(block * rows + row) * row_bytes;
  }
  const char* row(const void* data, std::int64_t block, std::int64_t row) const {
    return this->row(const_cast<void*>(data), block, row);
  }
};

// Return `value` as numbers of the type `dtype`, as they lie in memory.
std::string cast(const HeldTensor& value, const std::string& dtype);

}  // namespace xlruntime
