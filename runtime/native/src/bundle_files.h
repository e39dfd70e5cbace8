// Open a bundle's folder: read its manifest, compare its files with their digests, notice that they were replaced.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "manifest.h"

namespace xlruntime {

// Read the manifest of `folder`; no other file is opened. Throws ErrorCode::bundle_not_found, ErrorCode::bundle.
Bundle read_manifest(const std::filesystem::path& folder);

// Compare files with the digests in the manifest. Throws ErrorCode::bundle, which lists all that differ.
void check_digests(const std::filesystem::path& folder, const NamedList<FileDigest>& files);

FileDigest digest_file(const std::filesystem::path& path);

// The files that determine the numbers of a bundle, as they were when it was opened. Safe to share between threads.
//
// Make it before digests are compared, and require() it before and after any of the files is read.
class BundleFiles {
 public:
  BundleFiles(std::filesystem::path folder, const Bundle& bundle);

  // Throws ErrorCode::bundle if a file was replaced by one with other content.
  void require();

 private:
  using Stamp = std::array<std::int64_t, 5>;

  static std::optional<Stamp> stamp(const std::filesystem::path& path);

  std::filesystem::path folder_;
  NamedList<FileDigest> digests_;
  NamedList<std::optional<Stamp>> stamps_;
  std::mutex lock_;
};

}  // namespace xlruntime
