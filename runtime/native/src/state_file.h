// State files: tensors and fields, written whole or not at all, and checked when read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "json.h"
#include "read_limits.h"
#include "safetensors.h"

namespace xlruntime {

struct State {
  json::Object fields;  // without kind, version and digest
  NamedList<HeldTensor> tensors;
};

// Write a state, and replace an older file in one step. The file is on the disk when this returns. Throws
// ErrorCode::file; an older file stays as it was.
void write_state(const std::filesystem::path& path, const std::string& kind, std::int64_t version,
                 const json::Object& fields, const std::vector<TensorView>& tensors);

// Throws ErrorCode::state: the file is not a state, of another kind or version, or damaged; ErrorCode::file.
// `repair` ends every message.
State read_state(const std::filesystem::path& path, const std::string& kind, std::int64_t version,
                 const std::string& repair, Limits limits = {});

}  // namespace xlruntime
