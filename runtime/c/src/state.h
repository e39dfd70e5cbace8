// Saved streams, which all runtimes read and write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "evaluation.h"
#include "memory.h"
#include "safetensors.h"

namespace xlruntime {

// What a stream has besides its memory.
struct StreamPlace {
  std::optional<std::int64_t> pending;  // id of the held token
  std::int64_t position = 0;            // tokens of the document, the held one included
  std::string held;                     // text without tokens
  bool begun = false;                   // text or drawn tokens came since the beginning or the last given ids
};

// What a file holds of a stream beyond the tensors of its memory.
struct State : StreamPlace {
  explicit State(const Bundle& bundle) : evaluation(bundle) {}

  EvaluationSettings evaluation;
  std::int64_t capacity = 0;  // slots of the largest ring
  Memory::Counters counters;
  std::vector<std::int64_t> positions;  // of a step model: of each row, steps since its reset
  Safetensors file{};                  // of a state that was read
  std::vector<std::string_view> data;  // of each memory, in the order of the bundle

  // Throws XLR_ERROR_FILE.
  static void write(const std::filesystem::path& path, const EvaluationSettings& evaluation, const Memory& memory,
                    const StreamPlace& place);

  // Write a stream of a step model: `steps` since it was opened, the position of each row, and the states in the order
  // of the bundle. Throws XLR_ERROR_FILE.
  static void write_rows(const std::filesystem::path& path, const EvaluationSettings& evaluation, std::int64_t steps,
                         const std::vector<std::int64_t>& positions, const std::vector<const Buffer*>& states);

  // Read a state of this bundle, and check it before memory is allocated for it. Throws XLR_ERROR_STATE_DAMAGED,
  // XLR_ERROR_STATE_MISMATCH, XLR_ERROR_FILE.
  static State read(const std::filesystem::path& path, const Bundle& bundle);
};

}  // namespace xlruntime
