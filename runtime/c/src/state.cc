#include "state.h"

#include <algorithm>
#include <charconv>

#include "atomic_output.h"
#include "errors.h"
#include "sha256.h"
#include "tokenizers/held_text.h"
#include "unicode.h"

namespace xlruntime {
namespace {

constexpr const char *kKind = "xlexport stream", *kVersion = "4", *kOldVersion = "3";
const std::string kSetting = "setting.";
constexpr const char* kCounters[] = {"capacity", "offset", "length", "history", "pending", "position", "digest",
                                     "held",     "begun",  "tokenizer"};
constexpr const char* kHint = "Save the stream again.";
constexpr std::int64_t kLargestCount = std::int64_t{1} << 52;  // of tokens: exact in any runtime, also after more of them

using Texts = std::map<std::string, std::string>;

// The SHA-256 of one line for each other text, and of the data.
std::string digest(const Texts& texts, const std::vector<std::string_view>& data) {
  Sha256 sum;
  for (const auto& [name, text] : texts) {
    if (name != "digest") sum.update(name + "=" + text + "\n");
  }
  for (const std::string_view part : data) sum.update(part);
  return sum.hexadecimal();
}

// The SHA-256 of the tokenizer's file, or "".
std::string tokenizer_digest(const Bundle& bundle) {
  const auto& file = bundle.tokenizer.file;
  return file ? bundle.files.at(*file).sha256 : "";
}

std::string flag(bool value) { return value ? "true" : "false"; }

// The texts that name the bundle and the settings.
Texts identity(const EvaluationSettings& evaluation) {
  const Bundle& bundle = evaluation.bundle();
  Texts texts{{"kind", kKind},
              {"version", kVersion},
              {"fingerprint", bundle.fingerprint},
              {"segment_len", std::to_string(evaluation.segment_len())},
              {"restart", flag(bundle.document.restart)}};
  for (std::size_t i = 0; i < bundle.settings.size(); ++i) {
    const std::int64_t value = evaluation.value(i);
    const Setting& setting = bundle.settings[i];
    texts[kSetting + setting.name] = setting.is_boolean ? flag(value != 0) : std::to_string(value);
  }
  return texts;
}

// The indices of the memories, sorted by the names of their inputs.
std::vector<std::size_t> sorted_memories(const Bundle& bundle) {
  std::vector<std::size_t> order(bundle.memory.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return bundle.memory[a].input < bundle.memory[b].input; });
  return order;
}

// The texts and numbers of a state.
class Numbers {
 public:
  Numbers(const Texts& texts, const std::string& where) : texts_(texts), where_(where) {}

  Error damaged(const std::string& name) const {
    return Error(XLR_ERROR_STATE_DAMAGED, where_ + ": its " + name + " is impossible for a stream.", kHint);
  }

  Error mismatch(const std::string& problem) const {
    return Error(XLR_ERROR_STATE_MISMATCH, where_ + ": " + problem + ".", kHint);
  }

  const std::string& text(const std::string& name) const {
    const auto place = texts_.find(name);
    if (place == texts_.end()) throw damaged(name);
    return place->second;
  }

  std::int64_t number(const std::string& name) const { return number_of(text(name), name); }

  std::int64_t number(const std::string& name, std::int64_t most) const { return within(number(name), name, most); }

  // Numbers with single spaces between them.
  std::vector<std::int64_t> list(const std::string& name, std::int64_t most) const {
    std::vector<std::int64_t> found;
    const std::string& digits = text(name);
    for (std::size_t begin = 0, end; begin <= digits.size(); begin = end + 1) {
      end = std::min(digits.find(' ', begin), digits.size());
      found.push_back(within(number_of(digits.substr(begin, end - begin), name), name, most));
    }
    return found;
  }

 private:
  std::int64_t number_of(const std::string& digits, const std::string& name) const {
    std::int64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (std::to_string(value) != digits) throw damaged(name);
    return value;
  }

  std::int64_t within(std::int64_t value, const std::string& name, std::int64_t most) const {
    if (value < 0 || value > most) throw damaged(name);
    return value;
  }

  const Texts& texts_;
  const std::string& where_;
};

// Write a file of these texts and of the memories in the order of the bundle.
void write_texts(const std::filesystem::path& path, const Bundle& bundle, Texts texts,
                 const std::vector<const Buffer*>& memories) {
  texts["tokenizer"] = tokenizer_digest(bundle);
  std::vector<TensorView> tensors;
  std::vector<std::string_view> parts;
  for (const std::size_t i : sorted_memories(bundle)) {
    const Buffer& buffer = *memories[i];
    tensors.push_back({bundle.memory[i].input, buffer.dtype(), buffer.shape(), buffer.data(), buffer.nbytes()});
    parts.emplace_back(static_cast<const char*>(buffer.data()), buffer.nbytes());
  }
  texts["digest"] = digest(texts, parts);
  const std::string header = safetensors_header(texts, tensors);
  parts.insert(parts.begin(), header);
  write_file(path, parts);
}

// Read what a stream of a document counts and holds.
void read_document(State& state, const Numbers& numbers) {
  const EvaluationSettings& evaluation = state.evaluation;
  const Bundle& bundle = evaluation.bundle();
  state.position = numbers.number("position", kLargestCount);
  const std::int64_t longest = evaluation.longest_part().value_or(kLargestCount);
  state.counters.position = numbers.number("history", std::min(state.position, longest));
  if (!numbers.text("pending").empty()) state.pending = numbers.number("pending", bundle.vocab_size - 1);
  if (state.pending.has_value() == (state.position == 0)) throw numbers.damaged("pending");
  if (evaluation.max_segment(state.capacity) < 1) throw numbers.damaged("capacity");
  const auto held = bytes_of_hexadecimal(numbers.text("held"));
  if (!held || held->size() > kMostHeld + 4) throw numbers.damaged("held text");
  state.held = *held;
  state.begun = numbers.text("begun") == flag(true);
  if (numbers.text("begun") != flag(state.begun)) throw numbers.damaged("begun");
  if (!state.held.empty() && numbers.text("tokenizer") != tokenizer_digest(bundle)) {
    throw numbers.mismatch("it holds text that another tokenizer had read");
  }
}

// Read what a stream of a step model counts: it holds no token and no text.
void read_rows(State& state, const Numbers& numbers) {
  state.positions = numbers.list("position", std::min(state.counters.offset,
                                                      state.evaluation.longest_part().value_or(kLargestCount)));
  if (numbers.text("history") != numbers.text("position")) throw numbers.damaged("history");
  if (state.capacity != state.evaluation.capacity()) throw numbers.damaged("capacity");
  for (const char* name : {"pending", "held", "tokenizer"}) {
    if (!numbers.text(name).empty()) throw numbers.damaged(name);
  }
  if (numbers.text("begun") != flag(false)) throw numbers.damaged("begun");
}

}  // namespace

void State::write(const std::filesystem::path& path, const EvaluationSettings& evaluation, const Memory& memory,
                  const StreamPlace& place) {
  const Bundle& bundle = evaluation.bundle();
  Texts texts = identity(evaluation);
  texts["capacity"] = std::to_string(memory.capacity());
  texts["offset"] = std::to_string(memory.counters().offset);
  texts["length"] = std::to_string(memory.counters().length);
  texts["history"] = std::to_string(memory.counters().position);
  texts["pending"] = place.pending ? std::to_string(*place.pending) : "";
  texts["position"] = std::to_string(place.position);
  texts["held"] = hexadecimal(place.held);
  texts["begun"] = flag(place.begun);
  memory.hide();
  std::vector<const Buffer*> buffers;
  for (std::size_t i = 0; i < bundle.memory.size(); ++i) buffers.push_back(&memory.buffer(i));
  write_texts(path, bundle, std::move(texts), buffers);
}

void State::write_rows(const std::filesystem::path& path, const EvaluationSettings& evaluation, std::int64_t steps,
                       const std::vector<std::int64_t>& positions, const std::vector<const Buffer*>& states) {
  Texts texts = identity(evaluation);
  std::string list;
  for (const std::int64_t position : positions) list += (list.empty() ? "" : " ") + std::to_string(position);
  texts.insert({{"capacity", std::to_string(evaluation.capacity())},
                {"offset", std::to_string(steps)},
                {"length", "0"},
                {"history", list},
                {"pending", ""},
                {"position", list},
                {"held", ""},
                {"begun", flag(false)}});
  write_texts(path, evaluation.bundle(), std::move(texts), states);
}

State State::read(const std::filesystem::path& path, const Bundle& bundle) {
  const std::string where = path.string();
  State state(bundle);
  state.file = Safetensors::read(path, XLR_ERROR_STATE_DAMAGED);
  Texts& texts = state.file.metadata;
  const Numbers numbers(texts, where);
  if (numbers.text("kind") != kKind) throw numbers.damaged("kind");
  const bool is_old = numbers.text("version") == kOldVersion;  // which held no text
  if (!is_old && numbers.text("version") != kVersion) {
    throw numbers.mismatch("a state of version " + shown(numbers.text("version")) + ", but this runtime reads " +
                           kOldVersion + " and " + kVersion);
  }
  if (numbers.text("digest") != digest(texts, {state.file.data})) throw numbers.damaged("SHA-256");
  if (is_old) {
    for (const char* name : {"held", "tokenizer"}) texts[name].clear();
    texts["begun"] = flag(numbers.text("position") != "0");
    texts["version"] = kVersion;
  }
  for (const char* name : {"fingerprint", "segment_len", "restart"}) numbers.text(name);
  for (const char* name : kCounters) numbers.text(name);
  if (numbers.text("fingerprint") != bundle.fingerprint) throw numbers.mismatch("saved from another bundle");

  EvaluationSettings& evaluation = state.evaluation;
  try {
    std::vector<std::int64_t> values;
    for (const Setting& setting : bundle.settings) {
      const std::string& text = numbers.text(kSetting + setting.name);
      values.push_back(setting.is_boolean ? text == "true" : numbers.number(kSetting + setting.name));
    }
    evaluation = EvaluationSettings(bundle, numbers.number("segment_len"), std::move(values));
  } catch (const Error& error) {
    throw numbers.mismatch(error.message);
  }
  Texts stated = texts;
  for (const char* name : kCounters) stated.erase(name);
  if (stated != identity(evaluation)) throw numbers.mismatch("saved with settings that the bundle does not have");

  state.capacity = numbers.number("capacity", kLargestCount);
  state.counters.offset = numbers.number("offset", kLargestCount);
  state.counters.length = numbers.number("length", evaluation.most_rows());
  if (bundle.is_step_model()) {
    read_rows(state, numbers);
  } else {
    read_document(state, numbers);
  }
  for (const MemoryEntry& entry : bundle.memory) {
    const auto tensor = state.file.tensors.find(entry.input);
    std::vector<std::int64_t> shape = memory_sizes(entry, evaluation, state.capacity);
    if (bundle.is_step_model()) shape[0] = static_cast<std::int64_t>(state.positions.size());
    if (tensor == state.file.tensors.end() || tensor->second.dtype != entry.dtype || tensor->second.shape != shape ||
        !tensor->second.is_finite()) {
      throw numbers.damaged("memory " + shown(entry.input));
    }
    state.data.push_back(tensor->second.data);
  }
  return state;
}

}  // namespace xlruntime
