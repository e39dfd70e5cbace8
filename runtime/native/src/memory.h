// The memory of a stream: buffers that graphs read and write, and counters that describe their contents.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluation.h"
#include "manifest.h"
#include "onnxruntime.h"
#include "safetensors.h"
#include "session.h"
#include "stream_state.h"

namespace xlruntime {

// Inputs of step graphs that stay the same for a whole walk, by name.
using Constants = std::vector<std::pair<std::string, Buffer>>;

// What does not change during a walk.
struct MemoryPlan {
  const Onnxruntime& ort;
  const Bundle& bundle;
  const NamedList<HeldTensor>& first_values;  // by Memory::first_value; an entry without one begins with zeros
  std::shared_ptr<const Constants> constants;
  EvaluationSettings evaluation;
  std::int64_t capacity;  // slots of the largest ring; the others have as many spare slots
};

// Throws ErrorCode::option: the machine has less memory than the buffers take. Linux grants them, and kills the process
// later.
void check_room(const MemoryPlan& plan);

// A carried tensor. A ring is read and written in place. Windows and states have two buffers that change places,
// because a step may read the old one after it has written the new one.
struct CarriedBuffers {
  const Memory* entry;
  Buffer now;
  std::optional<Buffer> next;

  const Buffer& target() const { return next.has_value() ? *next : now; }
};

// A place to rewind a memory to: counters, and copies of windows and states.
struct Mark {
  std::int64_t offset, length, position;
  std::vector<Buffer> copies;  // in the order of the bundle, without rings
};

// Small int64 inputs of a step.
class StepNumbers {
 public:
  explicit StepNumbers(const Onnxruntime& ort) : ort_(ort) { held_.reserve(16); }

  // Add an input of these numbers, if the graph takes it.
  void add(const Session& session, Bindings& inputs, const std::string& name, std::vector<std::int64_t> numbers,
           std::vector<std::int64_t> shape);
  void add(const Session& session, Bindings& inputs, const std::string& name, std::int64_t number) {
    add(session, inputs, name, {number}, {1});
  }

 private:
  const Onnxruntime& ort_;
  std::vector<std::pair<std::vector<std::int64_t>, Value>> held_;
};

// The memory of one batch row. Buffers always hold finite numbers: NaN times an attention weight of 0 is still NaN.
class StreamMemory {
 public:
  explicit StreamMemory(MemoryPlan plan);
  StreamMemory(const StreamMemory& other);  // copies the buffers
  StreamMemory& operator=(const StreamMemory&) = delete;

  const EvaluationSettings& evaluation() const { return plan_.evaluation; }
  std::int64_t capacity() const { return plan_.capacity; }
  std::int64_t position() const { return position_; }  // tokens read of the document since its last restart
  std::int64_t max_segment() const { return plan_.evaluation.max_segment(plan_.capacity); }
  std::int64_t room() const;  // tokens that can still be read before the document must end or restart
  std::size_t nbytes() const;

  // The numbers of tokens that the queries of the next step see, each itself included.
  std::vector<std::int64_t> context(std::int64_t segment) const;

  // Add the inputs of a step that describe this memory. `numbers` holds them until the step has run.
  void bind(const Session& session, StepNumbers& numbers, Bindings& inputs, Bindings& written) const;

  void advance(std::int64_t segment);

  // Begin a new document. `refill` also overwrites old rows, which is needed if they may not be finite.
  void restart(bool refill = false);

  Mark mark() const;

  // Go back to a mark, if at most max_segment tokens were run since then. `wipe` overwrites what they wrote.
  void rewind(const Mark& mark, bool wipe);

  // What a state file holds of this memory.
  void save(SavedStream& saved, std::vector<TensorView>& tensors) const;
  void restore(const SavedStream& saved, const NamedList<HeldTensor>& tensors);

 private:
  // The inputs that describe the rings of one capacity, and what they hold.
  struct RingInputs {
    const Ring* ring;
    std::int64_t slots, rows, window;
  };

  void fill(const CarriedBuffers& carried, const Buffer& buffer) const;  // with first values

  MemoryPlan plan_;
  std::vector<RingInputs> rings_;
  NamedList<std::int64_t> settings_;  // inputs of graphs
  std::int64_t most_rows_, widest_window_;
  bool has_states_ = false;
  std::vector<CarriedBuffers> carried_;
  std::int64_t offset_ = 0;  // rows written to the rings so far
  std::int64_t length_ = 0;  // visible rows of the ring that keeps the most
  std::int64_t position_ = 0;
};

}  // namespace xlruntime
