#include "bundle_files.h"

#include <fstream>
#include <utility>
#include <vector>

#ifndef _WIN32
#include <sys/stat.h>
#endif

#include "error.h"
#include "read_limits.h"
#include "messages.h"
#include "sha256.h"

namespace xlruntime {

namespace {

constexpr const char* kManifest = "bundle.json";
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kShownDigits = 12;

std::string problem(const std::filesystem::path& path, const std::string& name, const FileDigest& wanted) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return name + " is missing";
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, failed));
  if (failed) return name + " is missing";
  if (size != wanted.size) {
    return name + " has " + std::to_string(size) + " bytes, expected " + std::to_string(wanted.size);
  }
  const std::string found = digest_file(path).sha256;
  if (found == wanted.sha256) return "";
  return name + " was changed (SHA-256 " + found.substr(0, kShownDigits) + "…, expected " +
         wanted.sha256.substr(0, kShownDigits) + "…)";
}

}  // namespace

FileDigest digest_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::file, path.string() + ": cannot be read.");
  Sha256 sum;
  std::int64_t size = 0;
  std::vector<char> chunk(kChunk);
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    sum.update(chunk.data(), static_cast<std::size_t>(file.gcount()));
    size += file.gcount();
  }
  if (file.bad()) throw Error(ErrorCode::file, path.string() + ": cannot be read.");
  return {sum.hexadecimal(), size};
}

Bundle read_manifest(const std::filesystem::path& folder) {
  const auto refuse = [&folder](const std::string& problem, const char* repair) {
    throw Error(ErrorCode::bundle_not_found, folder.string() + ": " + problem + ".", repair);
  };
  std::error_code failed;
  if (!std::filesystem::exists(folder, failed)) {
    refuse("no such folder", "Make a bundle with `xlexport convert CHECKPOINT`.");
  }
  if (!std::filesystem::is_directory(folder, failed)) {
    refuse("a file, expected a bundle folder", "Make a bundle with `xlexport convert CHECKPOINT`.");
  }
  const std::filesystem::path manifest = folder / kManifest;
  if (!std::filesystem::is_regular_file(manifest, failed)) {
    refuse(std::string("no ") + kManifest + " in it, so not a bundle", "Make one with `xlexport convert CHECKPOINT`.");
  }
  Budget budget({std::int64_t{1} << 26, 1'000'000}, manifest.string(), ErrorCode::bundle);
  return Bundle::from_json(read_at_most(manifest, budget), manifest.string());
}

void check_digests(const std::filesystem::path& folder, const NamedList<FileDigest>& files) {
  std::vector<std::string> problems;
  for (const auto& [name, wanted] : files) {
    if (std::string found = problem(folder / name, name, wanted); !found.empty()) problems.push_back(std::move(found));
  }
  if (problems.empty()) return;
  throw Error(ErrorCode::bundle, folder.string() + ": " + joined(problems, "; ") + ".",
              "Copy it again, or convert the checkpoint again.");
}

BundleFiles::BundleFiles(std::filesystem::path folder, const Bundle& bundle)
    : folder_(std::move(folder)), digests_(bundle.computing_files()) {
  for (const auto& [name, digest] : digests_) stamps_.add(name, stamp(folder_ / name));
}

void BundleFiles::require() {
  const std::lock_guard<std::mutex> guard(lock_);
  std::vector<std::string> changed;
  for (auto& [name, known] : stamps_) {
    const std::filesystem::path path = folder_ / name;
    const std::optional<Stamp> found = stamp(path);
    if (found == known) continue;
    if (!found || digest_file(path).sha256 != digests_.find(name)->sha256) {
      changed.push_back(name);
    } else {  // written or copied again, with the same content
      known = found;
    }
  }
  if (changed.empty()) return;
  throw Error(ErrorCode::bundle,
              folder_.string() + ": the bundle was replaced while it was open (" + listed(changed) + " differs).",
              "Load it again.");
}

// Device, inode, size, and the times of writing and of any change; none if the file is missing.
std::optional<BundleFiles::Stamp> BundleFiles::stamp(const std::filesystem::path& path) {
#ifdef _WIN32
  std::error_code failed;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, failed));
  if (failed) return std::nullopt;
  const auto time = std::filesystem::last_write_time(path, failed);
  if (failed) return std::nullopt;
  return Stamp{0, 0, size, static_cast<std::int64_t>(time.time_since_epoch().count()), 0};
#else
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
#ifdef __APPLE__
  const timespec written = found.st_mtimespec, changed = found.st_ctimespec;
#else
  const timespec written = found.st_mtim, changed = found.st_ctim;
#endif
  const auto nanoseconds = [](const timespec& time) {
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  return Stamp{static_cast<std::int64_t>(found.st_dev), static_cast<std::int64_t>(found.st_ino),
               static_cast<std::int64_t>(found.st_size), nanoseconds(written), nanoseconds(changed)};
#endif
}

}  // namespace xlruntime
