// Publish a file whole or not at all, even with failures, kills and several writers of one output.
//
// It follows the protocol of xlruntime/atomic_output.py, so that writers in both languages leave each other in peace.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

namespace xlruntime {

using WriteBytes = std::function<void(const void* data, std::size_t size)>;

// Call `fill` to write a temporary file, which then takes the place of `output`, and is on the disk. Throws
// ErrorCode::file: the file cannot be written, and an older one stays as it was; or the output is a device, pipe, socket
// or folder, and nothing was written.
void write_file(const std::filesystem::path& output, const std::function<void(const WriteBytes& write)>& fill);

}  // namespace xlruntime
