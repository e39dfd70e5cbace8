#include "memory.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "error.h"
#include "messages.h"
#include "ring_rows.h"

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace xlruntime {
namespace {

constexpr double kLargest = 4e18;  // bytes: sizes beyond it would overflow

// The memory of this machine in bytes; 0 if the system does not report it.
double machine_bytes() {
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
  const double found = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return found > 0 ? found : 0;
#else
  return 0;
#endif
}

std::string gigabytes(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f GB", bytes / 1e9);
  return text;
}

// The sizes of all axes of an entry, for one batch row.
std::vector<std::int64_t> sizes_of(const Memory& entry, const MemoryPlan& plan) {
  return memory_sizes(entry, plan.evaluation, plan.capacity, 1);
}

std::int64_t first_length(const EvaluationSettings& evaluation) {
  return evaluation.first_memory() == FirstMemory::zeros ? evaluation.most_rows() : 0;
}

// The remainder that is not negative.
std::int64_t modulo(std::int64_t number, std::int64_t divisor) { return (number % divisor + divisor) % divisor; }

TensorView view(const Memory& entry, const Buffer& buffer) {
  return {entry.input, buffer.dtype(), buffer.shape(), buffer.data()};
}

}  // namespace

void check_room(const MemoryPlan& plan) {
  double total = 0;
  for (const Memory& entry : plan.bundle.memory) {
    double bytes = static_cast<double>(item_size(entry.dtype)) * (entry.layout == MemoryLayout::ring ? 1 : 2);
    for (const std::int64_t size : sizes_of(entry, plan)) bytes *= static_cast<double>(size);
    total += bytes;
  }
  const double machine = machine_bytes();
  if (total <= (machine > 0 ? machine : kLargest)) return;
  throw Error(ErrorCode::option,
              "the memory of 1 batch rows of " + with_commas(plan.capacity) + " slots would take " + gigabytes(total) +
                  ", but this machine has " + gigabytes(machine) + ".",
              "Choose a smaller mem_len, segment_len or batch size.");
}

void StepNumbers::add(const Session& session, Bindings& inputs, const std::string& name,
                      std::vector<std::int64_t> numbers, std::vector<std::int64_t> shape) {
  if (!session.takes(name)) return;
  auto& [held, value] = held_.emplace_back(std::move(numbers), Value());
  value = ort_.tensor(held.data(), held.size() * sizeof(std::int64_t), shape, "int64");
  inputs.add(name, value.get());
}

StreamMemory::StreamMemory(MemoryPlan plan)
    : plan_(std::move(plan)),
      settings_(plan_.evaluation.inputs()),
      most_rows_(plan_.evaluation.most_rows()),
      widest_window_(plan_.evaluation.widest_window()),
      length_(first_length(plan_.evaluation)) {
  for (const auto& [symbol, ring] : plan_.evaluation.rules().rings) {
    rings_.push_back({&ring, plan_.evaluation.slots(symbol, plan_.capacity), plan_.evaluation.rows(symbol),
                      plan_.evaluation.window(symbol)});
  }
  for (const Memory& entry : plan_.bundle.memory) {
    CarriedBuffers carried{&entry, Buffer(plan_.ort, entry.dtype, sizes_of(entry, plan_)), std::nullopt};
    fill(carried, carried.now);  // also touches its pages, which would slow the first steps down
    if (entry.layout != MemoryLayout::ring) carried.next = carried.now.copy(plan_.ort);
    has_states_ = has_states_ || entry.layout == MemoryLayout::state;
    carried_.push_back(std::move(carried));
  }
}

StreamMemory::StreamMemory(const StreamMemory& other)
    : plan_(other.plan_),
      rings_(other.rings_),
      settings_(other.settings_),
      most_rows_(other.most_rows_),
      widest_window_(other.widest_window_),
      has_states_(other.has_states_),
      offset_(other.offset_),
      length_(other.length_),
      position_(other.position_) {
  for (const CarriedBuffers& carried : other.carried_) {
    CarriedBuffers twin{carried.entry, carried.now.copy(plan_.ort), std::nullopt};
    if (carried.next.has_value()) twin.next = twin.now.copy(plan_.ort);
    carried_.push_back(std::move(twin));
  }
}

void StreamMemory::fill(const CarriedBuffers& carried, const Buffer& buffer) const {
  const Memory& entry = *carried.entry;
  if (!entry.first_value.has_value()) {
    std::memset(buffer.data(), 0, buffer.nbytes());
    return;
  }
  const std::string value = cast(*plan_.first_values.find(*entry.first_value), entry.dtype);
  const auto axis = entry.row_axis();
  if (!axis.has_value()) {
    std::memcpy(buffer.data(), value.data(), buffer.nbytes());
    return;
  }
  const RowShape rows(buffer.shape(), *axis, item_size(entry.dtype));
  for (std::int64_t block = 0; block < rows.outer; ++block) {
    const char* first = value.data() + static_cast<std::size_t>(block) * rows.row_bytes;
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      std::memcpy(rows.row(buffer.data(), block, row), first, rows.row_bytes);
    }
  }
}

std::int64_t StreamMemory::room() const {
  const auto longest = plan_.evaluation.longest_part();
  if (!longest.has_value()) return kUnboundedWindow;
  if (plan_.evaluation.whole()) return position_ > 0 ? 0 : *longest;
  return *longest - position_;
}

std::size_t StreamMemory::nbytes() const {
  std::size_t total = 0;
  for (const CarriedBuffers& carried : carried_) total += carried.now.nbytes() * (carried.next.has_value() ? 2 : 1);
  return total;
}

std::vector<std::int64_t> StreamMemory::context(std::int64_t segment) const {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(segment));
  const std::int64_t kept = has_states_ ? position_ : std::min(position_, most_rows_);
  const std::int64_t most = has_states_ ? kUnboundedWindow : widest_window_;  // a state may depend on every token
  for (std::int64_t i = 0; i < segment; ++i) seen[static_cast<std::size_t>(i)] = std::min(kept + i + 1, most);
  return seen;
}

void StreamMemory::bind(const Session& session, StepNumbers& numbers, Bindings& inputs, Bindings& written) const {
  static const std::string kPosition = "position";
  numbers.add(session, inputs, kPosition, position_);
  for (const RingInputs& rings : rings_) {
    numbers.add(session, inputs, rings.ring->offset, offset_ % rings.slots);
    if (rings.ring->length) numbers.add(session, inputs, *rings.ring->length, std::min(length_, rings.rows));
    if (rings.ring->window) numbers.add(session, inputs, *rings.ring->window, rings.window);
  }
  for (const auto& [name, number] : settings_) numbers.add(session, inputs, name, number);
  for (const auto& [name, buffer] : *plan_.constants) {
    if (session.takes(name)) inputs.add(name, buffer.value());
  }
  for (const CarriedBuffers& carried : carried_) {
    inputs.add(carried.entry->input, carried.now.value());
    written.add(carried.entry->output, carried.target().value());
  }
}

void StreamMemory::advance(std::int64_t segment) {
  offset_ += segment;
  length_ = std::min(length_ + segment, most_rows_);
  position_ += segment;
  for (CarriedBuffers& carried : carried_) {
    if (carried.next.has_value()) std::swap(carried.now, *carried.next);
  }
}

void StreamMemory::restart(bool refill) {
  const bool all = refill || plan_.evaluation.first_memory() == FirstMemory::zeros;
  for (const CarriedBuffers& carried : carried_) {
    if (all || carried.entry->layout == MemoryLayout::state) fill(carried, carried.now);
  }
  length_ = first_length(plan_.evaluation);
  position_ = 0;
}

Mark StreamMemory::mark() const {
  Mark mark{offset_, length_, position_, {}};
  for (const CarriedBuffers& carried : carried_) {
    if (carried.next.has_value()) mark.copies.push_back(carried.now.copy(plan_.ort));
  }
  return mark;
}

void StreamMemory::rewind(const Mark& mark, bool wipe) {
  auto copy = mark.copies.begin();
  for (const CarriedBuffers& carried : carried_) {
    if (carried.next.has_value()) {
      std::memcpy(carried.now.data(), copy->data(), copy->nbytes());
      ++copy;
    } else if (wipe) {
      const RowShape rows(carried.now.shape(), *carried.entry->row_axis(), item_size(carried.entry->dtype));
      const Buffer fresh(plan_.ort, carried.now.dtype(), carried.now.shape());
      fill(carried, fresh);
      for (std::int64_t written = mark.offset; written < offset_; ++written) {
        for (std::int64_t block = 0; block < rows.outer; ++block) {
          std::memcpy(rows.row(carried.now.data(), block, written % rows.rows),
                      rows.row(fresh.data(), block, written % rows.rows), rows.row_bytes);
        }
      }
    }
  }
  offset_ = mark.offset;
  length_ = mark.length;
  position_ = mark.position;
}

void StreamMemory::save(SavedStream& saved, std::vector<TensorView>& tensors) const {
  saved.capacity = plan_.capacity;
  saved.offset = offset_;
  saved.memory_length = length_;
  saved.history = position_;
  for (const CarriedBuffers& carried : carried_) tensors.push_back(view(*carried.entry, carried.now));
}

void StreamMemory::restore(const SavedStream& saved, const NamedList<HeldTensor>& tensors) {
  for (const CarriedBuffers& carried : carried_) {
    const Memory& entry = *carried.entry;
    const std::string& data = tensors.find(entry.input)->data;
    if (saved.capacity == plan_.capacity || entry.layout != MemoryLayout::ring) {
      std::memcpy(carried.now.data(), data.data(), carried.now.nbytes());
      continue;
    }
    // Another number of slots: each row moves to the slot of its age.
    const RowShape rows(carried.now.shape(), *entry.row_axis(), item_size(entry.dtype));
    RowShape old = rows;
    old.rows += saved.capacity - plan_.capacity;
    const std::int64_t kept = std::min({plan_.evaluation.rows(*entry.symbol()), old.rows, rows.rows});
    for (std::int64_t age = saved.offset - kept; age < saved.offset; ++age) {
      for (std::int64_t block = 0; block < rows.outer; ++block) {
        std::memcpy(rows.row(carried.now.data(), block, modulo(age, rows.rows)),
                    old.row(data.data(), block, modulo(age, old.rows)), rows.row_bytes);
      }
    }
  }
  offset_ = saved.offset;
  length_ = saved.memory_length;
  position_ = saved.history;
}

}  // namespace xlruntime
