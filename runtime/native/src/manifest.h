// The contract of a bundle: `bundle.json`, read and checked (docs/bundle_format.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation.h"
#include "json.h"
#include "named_list.h"

namespace xlruntime {

inline constexpr std::int64_t kFormatVersion = 3;
inline constexpr const char* kMetadataKey = "xlexport.graph";
inline constexpr const char* kFirstMemoryFile = "first_memory.safetensors";
inline constexpr std::int64_t kLargestAxis = (std::int64_t{1} << 31) - 1;

// An axis is a number (fixed) or a name (free): batch, segment, or the symbol of a ring's capacity.
struct Axis {
  std::string name;       // empty if it is fixed
  std::int64_t size = 0;  // 0 if it is free

  bool is_free() const { return !name.empty(); }
  json::Value as_json() const { return is_free() ? json::Value(name) : json::Value(size); }
  bool operator==(const Axis& other) const { return name == other.name && size == other.size; }
};

// One input or output of a graph.
struct Tensor {
  std::string name;
  std::string dtype;  // numpy name, "float32"
  std::vector<Axis> shape;
};

enum class MemoryLayout { ring, window, state };

// One carried tensor: the input of a step graph that takes it, and the output with its next value.
struct Memory {
  std::string input;   // "memory_key_0"
  std::string output;  // "new_memory_key_0"
  std::string dtype;
  std::vector<Axis> shape;                 // (batch, n_head, capacity, d_head)
  std::optional<std::string> first_value;  // tensor in kFirstMemoryFile for each fresh slot; none: zero
  MemoryLayout layout = MemoryLayout::ring;

  std::optional<std::string> symbol() const;      // of the capacity; none if it is not a ring
  std::optional<std::size_t> row_axis() const;    // index of the axis of rows; none for a state
  std::string problem(const NamedList<Ring>& rings) const;  // of the shape; empty if there is none
};

enum class GraphFormat { onnx, torchscript, exported_program };

// One graph of the bundle; inputs and outputs are complete, memory included.
struct Graph {
  std::string file;
  std::vector<Tensor> inputs, outputs;
  std::optional<std::int64_t> max_segment;  // most tokens of a step; none: any number
  GraphFormat format = GraphFormat::onnx;

  const Tensor* input(std::string_view name) const;
  const Tensor* output(std::string_view name) const;

  // The value of the file's metadata entry kMetadataKey.
  std::string metadata(const std::vector<Memory>& memory) const;
};

struct TokenizerEntry {
  std::string kind;  // bytes, vocabulary, tokenizers, sentencepiece or none
  std::optional<std::string> file;
  std::int64_t first_id = 0;  // id of byte 0; smaller ids have no text
};

struct FileDigest {
  std::string sha256;
  std::int64_t size = 0;
};

struct Bundle {
  std::string architecture;
  json::Object config;
  std::int64_t vocab_size = 0;
  TokenizerEntry tokenizer;
  std::string precision;
  EvaluationRules evaluation;
  std::vector<Memory> memory;
  NamedList<Graph> graphs;  // by purpose
  json::Object provenance;
  NamedList<FileDigest> files;

  const Memory* memory_of_input(std::string_view name) const;
  NamedList<FileDigest> computing_files() const;  // the files that determine the numbers
  NamedList<FileDigest> guarded_files() const;    // all but descriptions, which people may edit
  std::string fingerprint() const;                // identity of this bundle's numbers

  // Read `bundle.json`; `where` is its path, for messages. Throws ErrorCode::bundle.
  static Bundle from_json(std::string_view text, const std::string& where);
};

}  // namespace xlruntime
