// The contract of a bundle: bundle.json, read and checked, and the files that it lists (docs/bundle_format.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"

namespace xlruntime {

inline constexpr std::int64_t kLargestLength = std::int64_t{1} << 30;    // of any number of tokens or rows
inline constexpr std::int64_t kLargestSize = (std::int64_t{1} << 53) - 1;  // exact in any runtime
inline constexpr std::int64_t kUnlimited = std::int64_t{1} << 62;        // keys of a window; safe to add to
inline constexpr const char* kFirstMemoryFile = "first_memory.safetensors";

// An axis is a number (fixed) or a name (free): batch, segment, or the symbol of a ring's capacity.
struct Axis {
  std::string name;       // empty if it is fixed
  std::int64_t size = 0;  // 0 if it is free

  bool operator==(const Axis& other) const { return name == other.name && size == other.size; }
};

// A tensor that is not memory: an output of a graph, or an input that a step model takes of the caller.
struct Tensor {
  std::string name, dtype;  // numpy name, "float32"
  std::vector<Axis> shape;

  bool operator==(const Tensor& other) const {
    return name == other.name && dtype == other.dtype && shape == other.shape;
  }
};

// Bytes of one step of one row of a tensor of a step model, at most kLargestSize.
std::int64_t step_bytes(const Tensor& tensor);

enum class Layout { ring, window, state };

// One carried tensor: the input of a step graph that takes it, and the output with its next value.
struct MemoryEntry {
  std::string input, output, dtype;        // "memory_key_0", "new_memory_key_0", "float32"
  std::vector<Axis> shape;                 // (batch, n_head, capacity, d_head)
  Layout layout = Layout::ring;
  std::optional<std::string> first_value;  // tensor in kFirstMemoryFile; none: zero
  std::size_t ring = 0;                    // index of its ring, if it is one
  std::size_t row_axis = 0;                // of a ring or a window
};

// One evaluation setting.
struct Setting {
  std::string name, meaning;  // one line for people, unit included
  std::int64_t value = 0;     // of a boolean 0 or 1
  bool is_boolean = false;
  std::int64_t minimum = 0, maximum = 0;
  std::optional<std::int64_t> off;  // integer outside the range that switches the setting off
};

// a * mem_len + b * segment_len + c.
struct Sum {
  std::int64_t a = 0, b = 0, c = 0;

  std::int64_t at(std::int64_t mem_len, std::int64_t segment_len) const { return a * mem_len + b * segment_len + c; }
};

// The rings of one capacity.
struct Ring {
  std::string symbol;
  Sum rows, slots;
  std::optional<Sum> window;              // keys that a query sees; none: any number
  std::optional<std::size_t> window_if;   // index of the boolean setting without which the window is unlimited
};

enum class Feed { tokens, targets, position, offset, length, window, slots, setting, constant, memory, input };

// An input of a graph. `index` is that of the ring, the setting, the memory, the output of `positions`, or the caller's
// tensor it is about.
struct Input {
  std::string name;
  Feed feed = Feed::tokens;
  std::size_t index = 0;
};

struct Graph {
  std::string name, file;
  bool is_onnx = true;  // else one of PyTorch's formats, which this runtime does not run
  std::vector<Input> inputs;
  std::vector<Tensor> fed;  // inputs that the caller of a step model gives
  std::vector<Tensor> outputs;
  std::map<std::string, std::int64_t> fixed;  // sizes of axes

  std::int64_t fixed_or(const char* axis, std::int64_t other) const {
    const auto place = fixed.find(axis);
    return place == fixed.end() ? other : place->second;
  }
};

// A graph that can run a step of some purpose, and when a runtime may choose it.
struct Choice {
  std::size_t graph = 0;                  // its index
  std::int64_t max_segment = kUnlimited;  // most tokens of a step
  std::vector<std::string> kernels;       // operators for which the runtime must have kernels
  bool accelerator = false;               // whether only a device with memory of its own runs it
};

struct Tokenization {
  std::string kind;  // bytes, vocabulary, tokenizers, sentencepiece or none
  std::optional<std::string> file;
  std::int64_t first_id = 0;  // id of byte 0
  std::optional<std::int64_t> size;   // ids that have a text or a role
  std::optional<std::string> bpe;     // file of a byte-level BPE, if this is one
  std::optional<std::int64_t> begin;  // id of the token that begins a text
  bool adds_begin = false;            // whether the tokenizer's own rule puts it before each text
  std::vector<std::int64_t> ends;     // ids of the tokens that end a text
};

// How documents are cut into steps.
struct DocumentRules {
  std::int64_t segment_len = 0;
  std::optional<std::int64_t> max_positions;  // most tokens of a document that are read
  bool restart = false;                       // whether a longer one begins again
  bool full_document = false;                 // whether a document is one step
  bool bidirectional = false;                 // whether the step also takes the document's last token
  bool begins_with_zeros = false;             // whether queries see the rows of a fresh memory
};

struct FileEntry {
  std::string sha256;
  std::int64_t size = 0;
  std::filesystem::file_time_type time{};  // of writing, when the file was last compared
};

struct Bundle {
  std::string digest;       // SHA-256 of bundle.json
  std::string onnxruntime;  // the smallest version
  std::string architecture, precision;
  std::int64_t vocab_size = 0;
  Tokenization tokenizer;
  DocumentRules document;
  std::vector<Setting> settings;
  std::vector<Ring> rings;
  std::vector<MemoryEntry> memory;
  std::vector<Graph> graphs;
  std::map<std::string, std::vector<Choice>> steps;  // by purpose, in order of preference
  std::string fingerprint;                           // says which saved streams belong to this bundle
  std::map<std::string, FileEntry> files;

  // Read the bundle.json of a folder. `digest` is its SHA-256 that the caller expects; nullptr: any.
  //
  // Throws XLR_ERROR_BUNDLE_NOT_FOUND, XLR_ERROR_BUNDLE_FORMAT, XLR_ERROR_BUNDLE_DAMAGED, XLR_ERROR_BUNDLE_MISMATCH.
  static Bundle read(const std::filesystem::path& folder, const char* digest);

  // Read the text of bundle.json; `where` is its path, for messages. Throws XLR_ERROR_BUNDLE_FORMAT.
  static Bundle from_json(std::string_view text, const std::string& where);

  bool is_step_model() const { return vocab_size == 0; }  // which maps numbers to numbers
  const Graph* graph(std::string_view name) const;
  const Setting* mem_len() const;  // null if it is not declared
};

// The files of an open bundle. Safe to share between threads.
class BundleFiles {
 public:
  // Require that all files lie in the folder, and compare them with their digests if `compare`.
  //
  // Throws XLR_ERROR_BUNDLE_DAMAGED, which lists the files that differ.
  BundleFiles(const std::filesystem::path& folder, const Bundle& bundle, bool compare);

  // Compare the files that were written since they were last compared. Throws XLR_ERROR_BUNDLE_DAMAGED.
  void require_unchanged();

 private:
  const std::filesystem::path folder_;
  std::map<std::string, FileEntry> files_;
  std::mutex lock_;
};

}  // namespace xlruntime
