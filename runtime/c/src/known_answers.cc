#include "known_answers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "errors.h"
#include "json.h"
#include "manifest_fields.h"
#include "safetensors.h"

namespace xlruntime {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr const char* kAnswersFile = "known_answers.json";
constexpr std::int64_t kLargestFile = 40'000;  // bytes

struct Answers {
  std::optional<std::int64_t> segment_len, mem_len;
  Ids tokens;
  std::vector<double> log_probs, bounds;
  std::map<std::string, Ids> memory;
  bool certain = true;
};

std::int64_t whole(const Fields& fields, const std::string& place, const json::Value& value, std::int64_t most) {
  const std::int64_t* const number = value.as<std::int64_t>();
  if (number != nullptr && *number >= 0 && *number <= most) return *number;
  throw fields.error(place + " is not a whole number from 0 to " + std::to_string(most));
}

std::vector<double> numbers(Fields& fields, const char* name, std::size_t count, double least) {
  std::vector<double> found;
  for (const json::Value& value : fields.list(name)) {
    const double* const number = value.as<double>();
    if (number == nullptr || !(*number > least)) {
      throw fields.error(std::string(name) + "[" + std::to_string(found.size()) + "] is not a number" +
                         (least == 0 ? " above 0" : ""));
    }
    found.push_back(*number);
  }
  if (found.size() != count || count == 0) throw fields.error(std::string(name) + " has not as many entries as tokens");
  return found;
}

Answers read(const Model& model) {
  const Bundle& bundle = model.bundle();
  const std::filesystem::path path = model.folder() / kAnswersFile;
  const std::string raw = read_file(path);
  const json::Value value = json::parse(raw, path.string(), XLR_ERROR_BUNDLE_FORMAT);
  Fields fields(value, path.string());
  if (static_cast<std::int64_t>(raw.size()) > kLargestFile) throw fields.error("has more than 40,000 bytes");
  Answers answers;
  Fields settings = fields.object("settings");
  for (const auto& [name, chosen] : settings.all()) {  // all others are the bundle's own
    const std::int64_t* const number = chosen.as<std::int64_t>();
    if (number == nullptr && chosen.as<bool>() == nullptr) throw settings.error(shown(name) + " is no setting's value");
    const auto is_this = [&name = name](const Setting& setting) { return setting.name == name; };
    if (name != "segment_len" && std::none_of(bundle.settings.begin(), bundle.settings.end(), is_this)) {
      throw settings.error(shown(name) + " is none of the bundle's settings");
    }
    if (name == "segment_len" && number != nullptr) answers.segment_len = *number;
    if (name == "mem_len" && number != nullptr) answers.mem_len = *number;
  }
  for (const json::Value& token : fields.list("tokens")) {
    const std::string place = "tokens[" + std::to_string(answers.tokens.size()) + "]";
    answers.tokens.push_back(whole(fields, place, token, bundle.vocab_size - 1));
  }
  const std::size_t n = answers.tokens.empty() ? 0 : answers.tokens.size() - 1;
  answers.log_probs = numbers(fields, "log_probs", n, -std::numeric_limits<double>::infinity());
  answers.bounds = numbers(fields, "bounds", n, 0);
  Fields memory = fields.object("memory");
  for (const auto& [name, unused] : memory.all()) {
    Ids& shape = answers.memory[name];
    for (const json::Value& size : memory.list(name.c_str())) {
      shape.push_back(whole(memory, shown(name), size, kLargestSize));
    }
  }
  if (!fields.value("margin").is_null()) fields.get<double>("margin", "a number or null");
  answers.certain = fields.boolean("certain");
  fields.end();
  return answers;
}

EvaluationSettings settings_of(const Model& model, const Answers& answers) {
  try {
    EvaluationSettings evaluation(model.bundle(), answers.segment_len, answers.mem_len);
    const auto read = static_cast<std::int64_t>(answers.log_probs.size());
    const std::int64_t longest = evaluation.longest_part().value_or(read);
    if (read > longest) {
      throw Error(XLR_ERROR_TOO_LONG,
                  "has " + std::to_string(read) + " tokens to read, the model reads " + std::to_string(longest) + ".", "");
    }
    return evaluation;
  } catch (const Error& error) {
    throw Error(XLR_ERROR_BUNDLE_FORMAT, (model.folder() / kAnswersFile).string() + ": " + error.what(), kConvertAgain);
  }
}

std::string shown_shape(const Ids& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + joined(sizes, ", ") + "]";
}

// The first memory of another shape than the answers say.
std::optional<std::string> other_shape(const Memory& memory, const Answers& answers) {
  std::map<std::string, Ids> found;
  for (const MemoryEntry& entry : memory.evaluation().bundle().memory) {
    found[entry.input] = memory_sizes(entry, memory.evaluation(), memory.capacity());
  }
  if (found == answers.memory) return std::nullopt;
  for (const auto& [name, shape] : found) {
    const auto expected = answers.memory.find(name);
    if (expected == answers.memory.end()) return "memory " + shown(name) + " is not in the known answers";
    if (expected->second == shape) continue;
    return "memory " + shown(name) + " has the shape " + shown_shape(shape) + ", expected " +
           shown_shape(expected->second);
  }
  return "the known answers have memories that the bundle lacks";
}

}  // namespace

bool has_known_answers(const Model& model) {
  return model.bundle().files.count(kAnswersFile) != 0 && !model.bundle().is_step_model();
}

std::optional<Check> check_known_answers(Model& model, double seconds) {
  if (!has_known_answers(model)) return std::nullopt;
  model.require_unchanged();
  const Answers answers = read(model);
  const EvaluationSettings evaluation = settings_of(model, answers);
  const auto memory = model.new_memory(evaluation, evaluation.capacity());
  const std::int64_t longest = std::min(memory->max_segment(), model.longest_step("score", evaluation.segment_len()));
  Check check;
  check.certain = answers.certain;
  check.problem = other_shape(*memory, answers);
  const auto n = static_cast<std::int64_t>(answers.log_probs.size());
  bool differs = false;
  const auto began = std::chrono::steady_clock::now();
  const auto is_late = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > seconds;
  };
  while (check.tokens < n && !(check.tokens > 0 && is_late())) {
    const auto first = answers.tokens.begin() + check.tokens;
    const std::int64_t S = std::min(longest, n - check.tokens);
    const std::vector<Result> results =
        model.step("score", *memory, Ids(first, first + S), Ids(first + 1, first + S + 1));
    const float* const found = result_of(results, "log_prob", "float32", S).data<float>();
    for (std::int64_t i = 0; i < S; ++i, ++check.tokens) {
      const auto place = static_cast<std::size_t>(check.tokens);
      const double expected = answers.log_probs[place], bound = answers.bounds[place];
      const double difference = std::abs(static_cast<double>(found[i]) - expected) / bound;
      check.largest = std::max(check.largest, std::isnan(difference) ? 0 : difference);
      if (difference <= 1 || differs) continue;
      differs = true;
      std::ostringstream text;
      text.precision(7);
      text << "token " << place + 1 << " of the known answers has the log-probability " << found[i] << ", expected "
           << expected << " within " << bound;
      check.problem = text.str();
    }
  }
  return check;
}

}  // namespace xlruntime
