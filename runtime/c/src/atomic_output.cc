#include "atomic_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#ifndef _WIN32
#include <unistd.h>
#endif

#include "errors.h"

namespace xlruntime {

void write_file(const std::filesystem::path& output, const std::vector<std::string_view>& parts) {
  const auto failure = [&](const std::string& reason) {
    return Error(XLR_ERROR_FILE, output.string() + ": cannot be written (" + reason + ").", "Give another path.");
  };
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::symlink_status(output, failed);
  if (std::filesystem::exists(status) && !is_regular_file(status) && !is_symlink(status)) throw failure("not a file");
  std::filesystem::path temporary = output;
  temporary.replace_filename("." + output.filename().string() + "." + std::to_string(std::random_device()()) + ".tmp");
  std::FILE* const file = std::fopen(temporary.string().c_str(), "wbx");
  if (file == nullptr) throw failure(std::strerror(errno));
  bool is_written = true;
  for (const std::string_view part : parts) {
    is_written = is_written && std::fwrite(part.data(), 1, part.size(), file) == part.size();
  }
  is_written = std::fflush(file) == 0 && is_written;
#ifndef _WIN32
  is_written = is_written && fsync(fileno(file)) == 0;
#endif
  const int reason = errno;
  std::fclose(file);
  if (is_written) std::filesystem::rename(temporary, output, failed);
  if (is_written && !failed) return;
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  throw failure(is_written ? failed.message() : std::strerror(reason));
}

}  // namespace xlruntime
