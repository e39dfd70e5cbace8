// The state of a stream in a file, interchangeable with Python's Stream.save and Model.restore.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "evaluation.h"
#include "manifest.h"
#include "state_file.h"

namespace xlruntime {

// The fields of a state, without the tensors of its memory.
struct SavedStream {
  std::string fingerprint;
  json::Object evaluation;  // EvaluationSettings::to_json
  std::int64_t capacity = 0;
  std::int64_t offset = 0;         // rows written to the rings
  std::int64_t memory_length = 0;  // visible rows
  std::int64_t history = 0;        // tokens read since the last restart of the document
  std::optional<std::int64_t> pending;  // id of the held token
  std::int64_t position = 0;            // tokens taken of the document, the held one included
};

// The sizes of a carried tensor for `batch` rows, if the largest ring has `capacity` slots.
std::vector<std::int64_t> memory_sizes(const Memory& entry, const EvaluationSettings& evaluation,
                                       std::int64_t capacity, std::int64_t batch);

// `tensors` are named by Memory::input, in the order of the bundle. Throws ErrorCode::file.
void write_stream(const std::filesystem::path& path, const SavedStream& saved,
                  const std::vector<TensorView>& tensors);

struct ReadStream {
  SavedStream saved;
  EvaluationSettings evaluation;    // refers to the bundle's rules
  NamedList<HeldTensor> tensors;    // by Memory::input; of the sizes of memory_sizes, for one row; all are finite
};

// Read a state of this bundle, and check it: fields, settings and tensors. Throws ErrorCode::state, ErrorCode::file.
ReadStream read_stream(const std::filesystem::path& path, const Bundle& bundle, const std::filesystem::path& folder,
                       Limits limits = {});

// The first values of memories, by Memory::first_value: shaped as one slot, or one state, of one batch row. Throws
// ErrorCode::bundle: they are missing, of another shape, or not finite.
NamedList<HeldTensor> read_first_values(const std::filesystem::path& folder, const Bundle& bundle);

}  // namespace xlruntime
