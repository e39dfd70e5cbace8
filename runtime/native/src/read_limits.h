// Bounds for reading one file that may come from anybody.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "error.h"

namespace xlruntime {

struct Limits {
  std::int64_t bytes = std::int64_t{1} << 30;  // memory for the file's content after reading
  std::int64_t operations = 20'000'000;        // values of a JSON text, fields of a graph
};

inline constexpr const char* kCopyAgain = "Copy the file again, or write it again.";

// The rest of the limits while one file is read.
class Budget {
 public:
  Budget(Limits limits, std::string name, ErrorCode code, std::string repair = kCopyAgain);

  // Count bytes before they are allocated, and operations before they run; throw if a limit is exceeded.
  void charge(std::int64_t size, std::int64_t operations = 1);

  const std::string& name() const { return name_; }
  std::int64_t bytes_left() const { return bytes_; }

  // The error for a file that is damaged: "NAME: problem."
  Error damaged(const std::string& problem) const;

 private:
  Limits limits_;
  std::int64_t bytes_, operations_;
  std::string name_;
  ErrorCode code_;
  std::string repair_;
};

// Read a file to its end. Throws the budget's error if it is longer than the budget has left, ErrorCode::file if it
// cannot be read.
std::string read_at_most(const std::filesystem::path& path, Budget& budget);

}  // namespace xlruntime
