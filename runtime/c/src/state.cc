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

  const std::string& text(const std::string& name) const {
    const auto place = texts_.find(name);
    if (place == texts_.end()) throw damaged(name);
    return place->second;
  }

  std::int64_t number(const std::string& name) const {
    const std::string& digits = text(name);
    std::int64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (std::to_string(value) != digits) throw damaged(name);
    return value;
  }

  std::int64_t number(const std::string& name, std::int64_t most) const {
    const std::int64_t value = number(name);
    if (value < 0 || value > most) throw damaged(name);
    return value;
  }

 private:
  const Texts& texts_;
  const std::string& where_;
};

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
  texts["tokenizer"] = tokenizer_digest(bundle);
  memory.hide();
  std::vector<TensorView> tensors;
  std::vector<std::string_view> parts;
  for (const std::size_t i : sorted_memories(bundle)) {
    const Buffer& buffer = memory.buffer(i);
    tensors.push_back({bundle.memory[i].input, buffer.dtype(), buffer.shape(), buffer.data(), buffer.nbytes()});
    parts.emplace_back(static_cast<const char*>(buffer.data()), buffer.nbytes());
  }
  texts["digest"] = digest(texts, parts);
  const std::string header = safetensors_header(texts, tensors);
  parts.insert(parts.begin(), header);
  write_file(path, parts);
}

State State::read(const std::filesystem::path& path, const Bundle& bundle) {
  const std::string where = path.string();
  const auto mismatch = [&](const std::string& problem) {
    return Error(XLR_ERROR_STATE_MISMATCH, where + ": " + problem + ".", kHint);
  };
  State state(bundle);
  state.file = Safetensors::read(path, XLR_ERROR_STATE_DAMAGED);
  Texts& texts = state.file.metadata;
  const Numbers numbers(texts, where);
  if (numbers.text("kind") != kKind) throw numbers.damaged("kind");
  const bool is_old = numbers.text("version") == kOldVersion;  // which held no text
  if (!is_old && numbers.text("version") != kVersion) {
    throw mismatch("a state of version " + shown(numbers.text("version")) + ", but this runtime reads " + kOldVersion +
                   " and " + kVersion);
  }
  if (numbers.text("digest") != digest(texts, {state.file.data})) throw numbers.damaged("SHA-256");
  if (is_old) {
    for (const char* name : {"held", "tokenizer"}) texts[name].clear();
    texts["begun"] = flag(numbers.text("position") != "0");
    texts["version"] = kVersion;
  }
  for (const char* name : {"fingerprint", "segment_len", "restart"}) numbers.text(name);
  for (const char* name : kCounters) numbers.text(name);
  if (numbers.text("fingerprint") != bundle.fingerprint) throw mismatch("saved from another bundle");

  EvaluationSettings& evaluation = state.evaluation;
  try {
    std::vector<std::int64_t> values;
    for (const Setting& setting : bundle.settings) {
      const std::string& text = numbers.text(kSetting + setting.name);
      values.push_back(setting.is_boolean ? text == "true" : numbers.number(kSetting + setting.name));
    }
    evaluation = EvaluationSettings(bundle, numbers.number("segment_len"), std::move(values));
  } catch (const Error& error) {
    throw mismatch(error.message);
  }
  Texts stated = texts;
  for (const char* name : kCounters) stated.erase(name);
  if (stated != identity(evaluation)) throw mismatch("saved with settings that the bundle does not have");

  state.capacity = numbers.number("capacity", kLargestCount);
  state.counters.offset = numbers.number("offset", kLargestCount);
  state.counters.length = numbers.number("length", evaluation.most_rows());
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
    throw mismatch("it holds text that another tokenizer had read");
  }
  for (const MemoryEntry& entry : bundle.memory) {
    const auto tensor = state.file.tensors.find(entry.input);
    if (tensor == state.file.tensors.end() || tensor->second.dtype != entry.dtype ||
        tensor->second.shape != memory_sizes(entry, evaluation, state.capacity) || !tensor->second.is_finite()) {
      throw numbers.damaged("memory " + shown(entry.input));
    }
    state.data.push_back(tensor->second.data);
  }
  return state;
}

}  // namespace xlruntime
