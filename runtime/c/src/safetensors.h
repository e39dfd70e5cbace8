// Tensors in the file format of safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"

namespace xlruntime {

// Bytes of one number; 0 if no bundle has the type. Types are numpy names: "float32", "int64".
std::size_t item_size(std::string_view dtype);

// A tensor of a file.
struct HeldTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string_view data;  // row by row, little-endian

  bool is_finite() const;  // always true if it does not hold floats
};

// A tensor to be written.
struct TensorView {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  const void* data;
  std::size_t nbytes;
};

// A file in memory. Tensors are views of its content.
struct Safetensors {
  std::string content;
  std::string_view data;  // the section of data
  std::map<std::string, std::string> metadata;
  std::map<std::string, HeldTensor> tensors;

  // Throws `code`: the file is damaged; XLR_ERROR_FILE: it cannot be read.
  static Safetensors read(const std::filesystem::path& path, xlr_status code);
  static Safetensors from_bytes(std::string content, const std::string& where, xlr_status code);
};

// The beginning of a file, before the data of the tensors.
std::string safetensors_header(const std::map<std::string, std::string>& metadata,
                               const std::vector<TensorView>& tensors);

// Read a regular file to its end. Throws XLR_ERROR_FILE.
std::string read_file(const std::filesystem::path& path);

}  // namespace xlruntime
