#include "read_limits.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "messages.h"

namespace xlruntime {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes that are read at once

}  // namespace

Budget::Budget(Limits limits, std::string name, ErrorCode code, std::string repair)
    : limits_(limits),
      bytes_(limits.bytes),
      operations_(limits.operations),
      name_(std::move(name)),
      code_(code),
      repair_(std::move(repair)) {}

void Budget::charge(std::int64_t size, std::int64_t operations) {
  // A size from a file may be close to 2^63.
  bytes_ = size > bytes_ ? -1 : bytes_ - size;
  operations_ = operations > operations_ ? -1 : operations_ - operations;
  if (bytes_ >= 0 && operations_ >= 0) return;
  const std::string limit = bytes_ < 0 ? with_commas(limits_.bytes) + " bytes of memory"
                                       : with_commas(limits_.operations) + " operations";
  throw Error(code_, name_ + ": reading it would take more than " + limit + ".", "Check where the file comes from.");
}

Error Budget::damaged(const std::string& problem) const { return Error(code_, name_ + ": " + problem + ".", repair_); }

std::string read_at_most(const std::filesystem::path& path, Budget& budget) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::file, path.string() + ": cannot be read.");
  std::string content;
  std::int64_t left = budget.bytes_left() + 1;
  while (left > 0) {
    const std::size_t before = content.size();
    const std::size_t wanted = std::min<std::int64_t>(left, kPiece);
    content.resize(before + wanted);
    file.read(content.data() + before, static_cast<std::streamsize>(wanted));
    const std::int64_t found = file.gcount();
    content.resize(before + found);
    left -= found;
    if (!file) break;
  }
  if (file.bad()) throw Error(ErrorCode::file, path.string() + ": cannot be read.");
  budget.charge(static_cast<std::int64_t>(content.size()));
  return content;
}

}  // namespace xlruntime
