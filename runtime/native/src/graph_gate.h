// Refuse graphs that xlexport cannot have written, before ONNX Runtime sees any part of them.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "read_limits.h"
#include "manifest.h"

namespace xlruntime {

inline constexpr Limits kGraphLimits{std::int64_t{1} << 30, 5'000'000};

// Return the content of an ONNX file that passes check_graph. Give ONNX Runtime this content, not the path: the file
// may be replaced in between. `data_files` may hold the graph's tensors (Bundle::guarded_files).
//
// Throws ErrorCode::bundle.
std::string read_graph(const std::filesystem::path& path, const NamedList<FileDigest>& data_files,
                       Limits limits = kGraphLimits);

// Return the data files that hold the graph's tensors. Throws ErrorCode::bundle.
std::set<std::string> check_graph(std::string_view content, const std::string& file,
                                  const NamedList<FileDigest>& data_files, Limits limits = kGraphLimits);

}  // namespace xlruntime
