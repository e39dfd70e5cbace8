#include "atomic_output.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>

#ifndef _WIN32
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "error.h"

namespace xlruntime {

namespace {

namespace fs = std::filesystem;

constexpr const char* kDigits = "0123456789abcdef";
constexpr std::size_t kTokenDigits = 16;

std::string random_token() {
  std::random_device source;
  std::string token;
  while (token.size() < kTokenDigits) token += kDigits[source() & 15];
  return token;
}

[[noreturn]] void fail(const fs::path& output, int number) {
  throw Error(ErrorCode::file, output.string() + ": cannot be written (" + std::strerror(number) + ").");
}

// Refuse an output that is there, and neither a file nor a link.
void require_file(const fs::path& output) {
  std::error_code unknown;  // then writing fails, and says why
  const fs::file_status found = fs::symlink_status(output, unknown);
  if (!fs::exists(found) || fs::is_regular_file(found) || fs::is_symlink(found)) return;
  throw Error(ErrorCode::file, output.string() + ": exists and is not a file, so it is never replaced.",
              "Give another path.");
}

// The names of one attempt at `output`.
struct Temporary {
  fs::path path, lock, aside;

  Temporary(const fs::path& output, const std::string& token) {
    path = output;
    path.replace_filename("." + output.filename().string() + ".xlexport-" + token);
    lock = path;
    lock += ".lock";
    aside = path;
    aside += ".old";
  }

  // Remove all files, the lock file last. A folder that Python's runtime set aside is left to it.
  void remove() const {
    std::error_code ignored;
    fs::remove(path, ignored);
    if (!fs::exists(aside, ignored)) fs::remove(lock, ignored);
  }
};

#ifdef _WIN32

// Without locks: leftovers of killed processes stay.
void publish(const fs::path& output, const std::function<void(const WriteBytes&)>& fill) {
  const Temporary temporary(output, random_token());
  std::ofstream file(temporary.path, std::ios::binary);
  if (!file) fail(output, errno);
  try {
    fill([&](const void* data, std::size_t size) {
      file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
      if (!file) fail(output, errno);
    });
    file.close();
    if (!file) fail(output, errno);
    require_file(output);
    fs::rename(temporary.path, output);
  } catch (...) {
    file.close();
    temporary.remove();
    throw;
  }
}

#else

constexpr int kTries = 100;  // a try fails only if another process has removed a lock file
constexpr int kLeaveLinks = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;  // and do not wait for the other end of a pipe

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

// Whether the file is now locked by this process, or on a file system without locks.
bool try_lock(int descriptor) { return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

// Whether an open file is still a file at `path`.
bool is_at(const fs::path& path, int descriptor) {
  struct stat named, open;
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 && S_ISREG(named.st_mode) &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

// Remove the leftovers of killed processes at `output`.
void remove_remains(const fs::path& output) {
  const std::string start = "." + output.filename().string() + ".xlexport-";
  std::set<std::string> tokens;
  std::error_code failed;
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (name.compare(0, start.size(), start) != 0) continue;
    const std::string token = name.substr(start.size(), kTokenDigits), rest = name.substr(start.size() + token.size());
    const bool is_token = token.size() == kTokenDigits && token.find_first_not_of(kDigits) == std::string::npos;
    if (is_token && (rest.empty() || rest == ".lock")) tokens.insert(token);
  }
  for (const std::string& token : tokens) {
    const Temporary remains(output, token);
    const Descriptor lock(::open(remains.lock.c_str(), O_RDWR | kLeaveLinks));
    if (lock.get() < 0 && errno != ENOENT) continue;  // another user's
    const bool is_locked = lock.get() >= 0 && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
    if (lock.get() < 0 || (is_locked && is_at(remains.lock, lock.get()))) remains.remove();
  }
}

void sync_folder(const fs::path& output) {
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (opened.get() >= 0) ::fsync(opened.get());  // the output is complete; a power cut could restore the old one
}

void write_all(const fs::path& output, int descriptor, const void* data, std::size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(output, errno);
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
}

void publish_as(const fs::path& output, const Temporary& temporary,
                const std::function<void(const WriteBytes&)>& fill) {
  const Descriptor file(::open(temporary.path.c_str(), O_RDWR | O_CREAT | O_EXCL | kLeaveLinks, 0666));
  if (file.get() < 0) fail(output, errno);
  fill([&](const void* data, std::size_t size) { write_all(output, file.get(), data, size); });
  if (::fsync(file.get()) != 0) fail(output, errno);
  require_file(output);
  if (::rename(temporary.path.c_str(), output.c_str()) != 0) fail(output, errno);
  sync_folder(output);
}

void publish(const fs::path& output, const std::function<void(const WriteBytes&)>& fill) {
  remove_remains(output);
  for (int i = 0; i < kTries; ++i) {
    const Temporary temporary(output, random_token());
    const Descriptor lock(::open(temporary.lock.c_str(), O_RDWR | O_CREAT | O_EXCL | kLeaveLinks, 0666));
    if (lock.get() < 0) fail(output, errno);
    if (!try_lock(lock.get()) || !is_at(temporary.lock, lock.get())) continue;  // another process cleaned up first
    try {
      publish_as(output, temporary, fill);
    } catch (...) {
      temporary.remove();
      throw;
    }
    temporary.remove();
    return;
  }
  fail(output, EAGAIN);
}

#endif

}  // namespace

void write_file(const fs::path& output, const std::function<void(const WriteBytes& write)>& fill) {
  if (!output.has_filename()) fail(output, EISDIR);
  require_file(output);
  publish(output, fill);
}

}  // namespace xlruntime
