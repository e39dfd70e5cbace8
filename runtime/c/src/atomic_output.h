// Write a file that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace xlruntime {

// Write parts one after another to a file next to `output`, and then rename it. It is on the disk when this returns.
//
// Throws XLR_ERROR_FILE: the output is there and neither a file nor a link, or cannot be written; it stays as it was.
void write_file(const std::filesystem::path& output, const std::vector<std::string_view>& parts);

}  // namespace xlruntime
