// Tensors in the file format of safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "read_limits.h"
#include "named_list.h"

namespace xlruntime {

// Bytes of one number; 0 if the type is unknown. Types are numpy names: "float32", "int64".
std::size_t item_size(std::string_view dtype);

// A tensor in memory of its own.
struct HeldTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;  // row by row, little-endian

  bool is_finite() const;                // always true if it does not hold floats
  std::vector<double> values() const;    // of float16, float32 and float64
};

// A tensor in memory of somebody else, to be written.
struct TensorView {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  const void* data;

  std::size_t nbytes() const;
};

struct SafetensorsFile {
  NamedList<std::string> metadata;
  NamedList<HeldTensor> tensors;
};

// Read a whole file. The budget bounds its header; tensors take as much memory as they have in the file.
//
// Throws the budget's error if the file is damaged, ErrorCode::file if it cannot be read.
SafetensorsFile read_safetensors(const std::filesystem::path& path, Budget& budget);

// The beginning of a file: the length of a JSON object, and the object.
std::string safetensors_header(const NamedList<std::string>& metadata, const std::vector<TensorView>& tensors);

}  // namespace xlruntime
