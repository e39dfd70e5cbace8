// Tasks whose threads need memory of their own.
#pragma once

#include <stdlib.h>

#include "level.h"
#include "kernel.h"

namespace xlexport {

// Memory that is freed at the end of a block; the numbers in it are not set, and begin at a multiple of 64 bytes.
class Memory {
 public:
  explicit Memory(size_t bytes) : block_(malloc(bytes + 64)) {}
  ~Memory() { free(block_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Return the first byte, or null without enough memory.
  char* data() const {
    if (block_ == nullptr) return nullptr;
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(block_) + 63) & ~static_cast<uintptr_t>(63));
  }

 private:
  void* block_;
};

// Parts of one block of memory, each at a multiple of 64 bytes. Without a block it only adds up sizes.
class Parts {
 public:
  XLEXPORT_INLINE explicit Parts(char* block) : block_(block) {}

  template <typename T>
  XLEXPORT_INLINE T* take(int64_t count) {
    char* const part = block_ == nullptr ? nullptr : block_ + bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) & ~static_cast<size_t>(63);
    return reinterpret_cast<T*>(part);
  }
  XLEXPORT_INLINE size_t bytes() const { return bytes_; }

 private:
  char* block_;
  size_t bytes_ = 0;
};

// Call `work(scratch, task)` for each task of 0 … tasks - 1. Threads take the next task when they are ready, because
// tasks may differ in length. Each thread has one block of `bytes`.
template <typename Work>
OrtStatus* run_with_scratch(const Context& run, const char* name, int64_t tasks, size_t bytes, Work work) {
  constexpr int64_t kMostThreads = 256;
  int64_t next = 0;
  bool failed = false;
  OrtStatus* const status = run.parallel(static_cast<size_t>(tasks < kMostThreads ? tasks : kMostThreads), [&](size_t) {
    int64_t task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    if (task >= tasks) return;
    const Memory scratch(bytes);
    if (scratch.data() == nullptr) {
      __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
      return;
    }
    for (; task < tasks; task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) work(scratch.data(), task);
  });
  if (status != nullptr) return status;
  if (failed) return failure(run.api, "%s: no memory for %.0f bytes of scratch", name, static_cast<double>(bytes));
  return nullptr;
}

}  // namespace xlexport
