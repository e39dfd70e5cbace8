#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "errors.h"
#include "safetensors.h"

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace xlruntime {
namespace {

constexpr double kLargest = 4e18;  // bytes: sizes beyond it would overflow

// The memory of this machine in bytes.
double machine_bytes() {
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
  const double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return bytes > 0 ? bytes : kLargest;
#else
  return kLargest;
#endif
}

// A tensor as blocks of rows.
struct Rows {
  std::int64_t blocks = 1, rows = 1;
  std::size_t bytes = 0;  // of a row

  Rows(const std::vector<std::int64_t>& shape, std::size_t axis, std::size_t item_size)
      : rows(shape[axis]), bytes(item_size) {
    for (std::size_t i = 0; i < axis; ++i) blocks *= shape[i];
    for (std::size_t i = axis + 1; i < shape.size(); ++i) bytes *= static_cast<std::size_t>(shape[i]);
  }

  // The place of a row, which counts from any number on.
  std::size_t place(std::int64_t block, std::int64_t row) const {
    return static_cast<std::size_t>(block * rows + (row % rows + rows) % rows) * bytes;
  }
};

// The nearest half-precision number, ties to even, as bits.
std::uint16_t half_of(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (bits < 0x33000001) return sign;            // rounds to zero
  const auto exponent = static_cast<int>(bits >> 23) - 127;
  const std::uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
  const int dropped = exponent < -14 ? 13 + (-14 - exponent) : 13;  // bits: more of a subnormal number
  std::uint32_t kept = mantissa >> dropped;
  const std::uint32_t rest = mantissa & ((1u << dropped) - 1), middle = 1u << (dropped - 1);
  if (rest > middle || (rest == middle && (kept & 1) != 0)) ++kept;
  // The leading bit of a normal number adds one to the exponent; a carry of the rounding does so, too.
  if (exponent >= -14) kept += static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | kept);
}

template <class T, class Convert>
std::string converted(std::string_view data, const Convert& convert) {
  std::string out;
  for (std::size_t at = 0; at + sizeof(float) <= data.size(); at += sizeof(float)) {
    float number;
    std::memcpy(&number, data.data() + at, sizeof number);
    const T value = convert(number);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return out;
}

template <class T>
std::string as(std::string_view data) {
  return converted<T>(data, [](float number) { return static_cast<T>(number); });
}

// Numbers of float32 in another type.
std::string cast(std::string_view data, const std::string& dtype) {
  if (dtype == "float16") return converted<std::uint16_t>(data, half_of);
  if (dtype == "float64") return as<double>(data);
  if (dtype == "int8") return as<std::int8_t>(data);
  if (dtype == "int16") return as<std::int16_t>(data);
  if (dtype == "int32") return as<std::int32_t>(data);
  if (dtype == "int64") return as<std::int64_t>(data);
  if (dtype == "uint8" || dtype == "bool") return as<std::uint8_t>(data);
  if (dtype == "uint16") return as<std::uint16_t>(data);
  if (dtype == "uint32") return as<std::uint32_t>(data);
  if (dtype == "uint64") return as<std::uint64_t>(data);
  return std::string(data);
}

}  // namespace

FirstValues read_first_values(const std::filesystem::path& folder, const Bundle& bundle) {
  FirstValues values(bundle.memory.size());
  const auto has_value = [](const MemoryEntry& entry) { return entry.first_value.has_value(); };
  if (std::none_of(bundle.memory.begin(), bundle.memory.end(), has_value)) return values;
  const std::filesystem::path path = folder / kFirstMemoryFile;
  const Safetensors file = Safetensors::read(path, XLR_ERROR_BUNDLE_FORMAT);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const MemoryEntry& entry = bundle.memory[i];
    if (!entry.first_value) continue;
    std::vector<std::int64_t> shape;
    for (std::size_t axis = 1; axis < entry.shape.size(); ++axis) {
      if (entry.layout == Layout::state || axis != entry.row_axis) shape.push_back(entry.shape[axis].size);
    }
    const auto tensor = file.tensors.find(*entry.first_value);
    if (tensor == file.tensors.end() || tensor->second.dtype != "float32" || tensor->second.shape != shape ||
        !tensor->second.is_finite()) {
      throw Error(XLR_ERROR_BUNDLE_FORMAT, path.string() + ": " + shown(*entry.first_value) +
                                               " is not a first value of " + shown(entry.input) + ".");
    }
    values[i] = cast(tensor->second.data, entry.dtype);
  }
  return values;
}

std::vector<std::int64_t> memory_sizes(const MemoryEntry& entry, const EvaluationSettings& evaluation,
                                       std::int64_t capacity) {
  std::vector<std::int64_t> sizes{1};
  for (std::size_t i = 1; i < entry.shape.size(); ++i) sizes.push_back(entry.shape[i].size);
  if (entry.layout == Layout::ring) {
    sizes[entry.row_axis] = evaluation.slots(evaluation.bundle().rings[entry.ring], capacity);
  }
  return sizes;
}

void require_memory(double bytes, const std::string& what, const char* hint) {
  const double machine = machine_bytes();
  if (bytes <= machine * 3 / 4) return;
  char gigabytes[128];
  std::snprintf(gigabytes, sizeof gigabytes, " take %.1f GB, more than three quarters of this machine's %.1f GB.",
                bytes / 1e9, machine / 1e9);
  throw Error(XLR_ERROR_OPTION, what + gigabytes, hint);
}

void check_capacity(const EvaluationSettings& evaluation, std::int64_t capacity) {
  if (evaluation.max_segment(capacity) < 1) {
    throw Error(XLR_ERROR_OPTION, "a capacity of " + std::to_string(capacity) +
                                      " slots leaves no room for a token, as " +
                                      std::to_string(evaluation.most_rows()) + " rows are kept.");
  }
  double total = 0;
  for (const MemoryEntry& entry : evaluation.bundle().memory) {
    double bytes = static_cast<double>(item_size(entry.dtype)) * (entry.layout == Layout::ring ? 1 : 2);
    for (const std::int64_t size : memory_sizes(entry, evaluation, capacity)) bytes *= static_cast<double>(size);
    total += bytes;
  }
  require_memory(total, "memories of " + std::to_string(capacity) + " slots",
                 "Choose a smaller mem_len, segment_len or capacity.");
}

std::int64_t constant_number(const Input& input, const EvaluationSettings& evaluation, std::int64_t capacity) {
  if (input.feed == Feed::setting) return evaluation.value(input.index);
  const Ring& ring = evaluation.bundle().rings[input.index];
  return input.feed == Feed::window ? evaluation.window(ring) : evaluation.slots(ring, capacity);
}

Memory::Memory(const Onnxruntime& ort, const FirstValues& first_values, const EvaluationSettings& evaluation,
               std::int64_t capacity, std::shared_ptr<const Constants> constants)
    : ort_(ort),
      first_values_(first_values),
      evaluation_(evaluation),
      capacity_(capacity),
      most_rows_(evaluation.most_rows()),
      constants_(std::move(constants)) {
  for (const Ring& ring : evaluation_.bundle().rings) {
    widest_window_ = std::max(widest_window_, evaluation_.window(ring));
  }
  for (const MemoryEntry& entry : evaluation_.bundle().memory) {
    has_states_ = has_states_ || entry.layout == Layout::state;
    carried_.push_back({&entry, Buffer(ort, entry.dtype, memory_sizes(entry, evaluation_, capacity)), std::nullopt});
    fill(carried_.back());  // also touches its pages, which would slow the first steps down
    if (entry.layout != Layout::ring) carried_.back().next = carried_.back().now.copy(ort);
  }
  if (has_states_ || evaluation_.bundle().rings.empty()) widest_window_ = kUnlimited;
  if (evaluation_.document().begins_with_zeros) counters_.length = most_rows_;
}

Memory::Memory(const Memory& other)
    : ort_(other.ort_),
      first_values_(other.first_values_),
      evaluation_(other.evaluation_),
      capacity_(other.capacity_),
      most_rows_(other.most_rows_),
      widest_window_(other.widest_window_),
      has_states_(other.has_states_),
      constants_(other.constants_),
      counters_(other.counters_) {
  for (const Carried& carried : other.carried_) {
    carried_.push_back({carried.entry, carried.now.copy(ort_), std::nullopt});
    if (carried.next) carried_.back().next = carried_.back().now.copy(ort_);
  }
  hide();
}

void Memory::hide() const {
  const bool begins_with_zeros = evaluation_.document().begins_with_zeros;
  for (const Carried& carried : carried_) {
    const MemoryEntry& entry = *carried.entry;
    if (entry.layout == Layout::state) continue;
    const std::int64_t rows = carried.now.shape()[entry.row_axis];
    if (entry.layout == Layout::ring) {
      const std::int64_t kept = evaluation_.rows(evaluation_.bundle().rings[entry.ring]);
      fill_rows(carried, counters_.offset, rows - std::min(counters_.length, kept));
    } else if (!begins_with_zeros) {
      fill_rows(carried, 0, rows - std::min(counters_.position, rows));
    }
  }
}

void Memory::fill(const Carried& carried) const {
  const std::string& value = first_values_[static_cast<std::size_t>(&carried - carried_.data())];
  if (value.empty()) {
    std::memset(carried.now.data(), 0, carried.now.nbytes());
  } else if (carried.entry->layout == Layout::state) {
    std::memcpy(carried.now.data(), value.data(), carried.now.nbytes());
  } else {
    fill_rows(carried, 0, carried.now.shape()[carried.entry->row_axis]);
  }
}

void Memory::fill_rows(const Carried& carried, std::int64_t first, std::int64_t count) const {
  const std::string& value = first_values_[static_cast<std::size_t>(&carried - carried_.data())];
  const Rows rows(carried.now.shape(), carried.entry->row_axis, item_size(carried.entry->dtype));
  char* const data = static_cast<char*>(carried.now.data());
  for (std::int64_t block = 0; block < rows.blocks; ++block) {
    for (std::int64_t row = first; row < first + count; ++row) {
      char* const place = data + rows.place(block, row);
      if (value.empty()) {
        std::memset(place, 0, rows.bytes);
      } else {
        std::memcpy(place, value.data() + static_cast<std::size_t>(block) * rows.bytes, rows.bytes);
      }
    }
  }
}

std::int64_t Memory::room() const {
  const auto longest = evaluation_.longest_part();
  if (!longest) return kUnlimited;
  return evaluation_.document().full_document && counters_.position > 0 ? 0 : *longest - counters_.position;
}

std::size_t Memory::nbytes() const {
  std::size_t total = 0;
  for (const Carried& carried : carried_) total += carried.now.nbytes() * (carried.next ? 2 : 1);
  return total;
}

std::vector<std::int64_t> Memory::context(std::int64_t segment) const {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(segment));
  const std::int64_t kept = has_states_ ? counters_.position : std::min(counters_.position, most_rows_);
  for (std::int64_t i = 0; i < segment; ++i) seen[static_cast<std::size_t>(i)] = std::min(kept + i + 1, widest_window_);
  return seen;
}

std::int64_t Memory::number(const Input& input, std::int64_t length) const {
  if (input.feed == Feed::position) return counters_.position;
  if (input.feed == Feed::offset || input.feed == Feed::length) {
    const Ring& ring = evaluation_.bundle().rings[input.index];
    if (input.feed == Feed::offset) return counters_.offset % evaluation_.slots(ring, capacity_);
    return std::min(length, evaluation_.rows(ring)) + std::max<std::int64_t>(length - most_rows_, 0);
  }
  return constant_number(input, evaluation_, capacity_);
}

std::vector<Result> Memory::step(const Session& session, const std::vector<std::int64_t>& tokens,
                                 const std::vector<std::int64_t>& targets, std::int64_t length) {
  const auto S = static_cast<std::int64_t>(tokens.size());
  const std::vector<Input>& all = session.graph().inputs;
  Bindings inputs, written;
  std::vector<std::int64_t> numbers;
  std::vector<Value> values;
  numbers.reserve(all.size());  // their places are given to ONNX Runtime
  const auto add = [&](const Input& input, const std::int64_t* data, const std::vector<std::int64_t>& shape) {
    const std::size_t nbytes = static_cast<std::size_t>(elements(shape)) * sizeof *data;
    values.push_back(ort_.tensor(const_cast<std::int64_t*>(data), nbytes, shape, "int64"));
    inputs.add(input.name, values.back().get());
  };
  for (const Input& input : all) {
    if (input.feed == Feed::tokens) {
      add(input, tokens.data(), {1, S});
    } else if (input.feed == Feed::targets) {
      add(input, targets.data(), {1, S});
    } else if (input.feed == Feed::constant) {
      inputs.add(input.name, (*constants_)[input.index].value());
    } else if (input.feed == Feed::memory) {
      const Carried& carried = carried_[input.index];
      inputs.add(input.name, carried.now.value());
      written.add(carried.entry->output, (carried.next ? *carried.next : carried.now).value());
    } else {
      numbers.push_back(number(input, length));
      add(input, &numbers.back(), {1});
    }
  }
  std::vector<Result> results = session.run(inputs, written, 1, S);
  counters_.offset += S;
  counters_.length = std::min(length + S, most_rows_);
  counters_.position += S;
  for (Carried& carried : carried_) {
    if (carried.next) std::swap(carried.now, *carried.next);
  }
  return results;
}

void Memory::begin(bool refill) {
  const bool fills_all = refill || evaluation_.document().begins_with_zeros;
  for (const Carried& carried : carried_) {
    if (fills_all || carried.entry->layout == Layout::state) fill(carried);
  }
  counters_.length = evaluation_.document().begins_with_zeros ? most_rows_ : 0;
  counters_.position = 0;
}

Memory::Mark Memory::mark() const {
  Mark mark{counters_, {}};
  for (const Carried& carried : carried_) {
    if (carried.next) mark.copies.push_back(carried.now.copy(ort_));
  }
  return mark;
}

void Memory::rewind(const Mark& mark, bool wipe) {
  auto copy = mark.copies.begin();
  for (const Carried& carried : carried_) {
    if (carried.next) {
      std::memcpy(carried.now.data(), copy->data(), copy->nbytes());
      ++copy;
    } else if (wipe) {
      fill_rows(carried, mark.counters.offset, max_segment());
    }
  }
  counters_ = mark.counters;
}

void Memory::restore(const Counters& counters, std::int64_t capacity, const std::vector<std::string_view>& data) {
  counters_ = counters;
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const Carried& carried = carried_[i];
    const MemoryEntry& entry = *carried.entry;
    if (capacity == capacity_ || entry.layout != Layout::ring) {
      std::memcpy(carried.now.data(), data[i].data(), carried.now.nbytes());
      continue;
    }
    // Another number of slots: each row moves to the slot of its age.
    const Rows rows(carried.now.shape(), entry.row_axis, item_size(entry.dtype));
    const Rows old(memory_sizes(entry, evaluation_, capacity), entry.row_axis, item_size(entry.dtype));
    const Ring& ring = evaluation_.bundle().rings[entry.ring];
    for (std::int64_t row = counters.offset - evaluation_.rows(ring); row < counters.offset; ++row) {
      for (std::int64_t block = 0; block < rows.blocks; ++block) {
        std::memcpy(static_cast<char*>(carried.now.data()) + rows.place(block, row),
                    data[i].data() + old.place(block, row), rows.bytes);
      }
    }
  }
  hide();
}

}  // namespace xlruntime
