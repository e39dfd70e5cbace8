// The memory of a document: buffers that graphs read and write, and counters that describe their contents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation.h"
#include "onnxruntime.h"
#include "session.h"

namespace xlruntime {

// Outputs of the graph `positions`, in the order of the bundle.
using Constants = std::vector<Buffer>;

// A tensor for each memory in the order of the bundle, of its type: the value of one slot, or of the state, of one
// batch row. Empty: zero.
using FirstValues = std::vector<std::string>;

// Throws XLR_ERROR_BUNDLE_FORMAT: a tensor is missing, of another shape, or not finite.
FirstValues read_first_values(const std::filesystem::path& folder, const Bundle& bundle);

// The sizes of a memory for one batch row, if the largest ring has `capacity` slots.
std::vector<std::int64_t> memory_sizes(const MemoryEntry& entry, const EvaluationSettings& evaluation,
                                       std::int64_t capacity);

// Throws XLR_ERROR_OPTION, as "`what` take …": so many bytes are more than three quarters of the machine's memory.
void require_memory(double bytes, const std::string& what, const char* hint);

// Throws XLR_ERROR_OPTION: no step fits into the capacity, or the buffers take more memory than the machine has. Linux
// grants them, and kills the process later.
void check_capacity(const EvaluationSettings& evaluation, std::int64_t capacity);

// The number for an input that depends on settings and slots alone.
std::int64_t constant_number(const Input& input, const EvaluationSettings& evaluation, std::int64_t capacity);

// The memory of one batch row. Buffers always hold finite numbers: NaN times an attention weight of 0 is still NaN.
class Memory {
 public:
  struct Counters {
    std::int64_t offset = 0;    // rows written to the rings so far
    std::int64_t length = 0;    // visible rows of the ring that keeps the most
    std::int64_t position = 0;  // tokens read of the document since it last began
  };

  // A place to rewind to.
  struct Mark {
    Counters counters;
    std::vector<Buffer> copies;  // of windows and states
  };

  // `capacity`: slots of the largest ring, of which check_capacity has approved.
  Memory(const Onnxruntime& ort, const FirstValues& first_values, const EvaluationSettings& evaluation,
         std::int64_t capacity, std::shared_ptr<const Constants> constants);
  Memory(const Memory& other);  // copies what a query may still see
  Memory& operator=(const Memory&) = delete;

  const EvaluationSettings& evaluation() const { return evaluation_; }
  std::int64_t capacity() const { return capacity_; }
  const Counters& counters() const { return counters_; }
  std::int64_t max_segment() const { return evaluation_.max_segment(capacity_); }
  std::int64_t room() const;  // tokens that can still be read before the document must end or begin again
  std::size_t nbytes() const;

  // How many tokens the queries of the next step see, each itself included.
  std::vector<std::int64_t> context(std::int64_t segment) const;

  // Run a step of a graph on this memory, and advance by it. `targets` are the tokens after each of them; `length` is
  // the number of kept rows that they may see: that of the counters, and more within a step of several graphs.
  std::vector<Result> step(const Session& session, const std::vector<std::int64_t>& tokens,
                           const std::vector<std::int64_t>& targets, std::int64_t length);

  // Begin a new document. `refill` also overwrites old rows, which is needed if they may be any numbers.
  void begin(bool refill = false);

  Mark mark() const;

  // Go back to a mark, if at most max_segment tokens were run since then. `wipe` overwrites what they wrote.
  void rewind(const Mark& mark, bool wipe);

  // The buffer of a memory, in the order of the bundle. A saved stream holds it.
  const Buffer& buffer(std::size_t index) const { return carried_[index].now; }

  // Give the slots that no query may see their first value, because a saved or restored stream must not have others.
  void hide() const;

  // Take what a query may see of the data of a saved stream, whose largest ring had `capacity` slots.
  void restore(const Counters& counters, std::int64_t capacity, const std::vector<std::string_view>& data);

 private:
  // A carried tensor. A ring is read and written in place. Windows and states have two buffers that change places,
  // because a step may read the old one after it has written the new one.
  struct Carried {
    const MemoryEntry* entry;
    Buffer now;
    std::optional<Buffer> next;
  };

  void fill(const Carried& carried) const;  // with first values
  void fill_rows(const Carried& carried, std::int64_t first, std::int64_t count) const;  // modulo the rows
  std::int64_t number(const Input& input, std::int64_t length) const;

  const Onnxruntime& ort_;
  const FirstValues& first_values_;
  const EvaluationSettings evaluation_;
  const std::int64_t capacity_, most_rows_;
  std::int64_t widest_window_ = 0;
  bool has_states_ = false;
  std::shared_ptr<const Constants> constants_;
  std::vector<Carried> carried_;
  Counters counters_;
};

}  // namespace xlruntime
