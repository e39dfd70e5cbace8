#include "known_answers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "errors.h"
#include "json.h"
#include "manifest_fields.h"
#include "safetensors.h"
#include "step_stream.h"

namespace xlruntime {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr const char* kAnswersFile = "known_answers.json";
constexpr std::int64_t kLargestFile = 40'000;  // bytes

constexpr std::int64_t kLargestWhole = 9007199254740991;  // which every reader of JSON keeps

// The numbers of an input or output in all steps of one row.
struct Series {
  const Tensor* tensor;
  std::size_t bytes;  // of a step
  std::string data;
  double bound = 0;
};

double number_at(const std::string& dtype, const char* place) {
  float number = 0;
  std::uint64_t raw = 0;
  const std::size_t size = item_size(dtype), unused = 64 - 8 * size;
  if (dtype == "float32") {
    std::memcpy(&number, place, sizeof number);
    return static_cast<double>(number);
  }
  std::memcpy(&raw, place, size);
  const auto whole = static_cast<std::int64_t>(raw << unused) >> unused;
  return dtype[0] == 'i' ? static_cast<double>(whole) : static_cast<double>(raw);
}

// Put a number of JSON at a place of a tensor; false: the tensor's type does not hold it.
bool put(const json::Value& value, const std::string& dtype, char* place) {
  const std::int64_t* const whole = value.as<std::int64_t>();
  const double* const real = value.as<double>();
  if (dtype == "float32" && (whole != nullptr || real != nullptr)) {
    const auto number = static_cast<float>(real == nullptr ? static_cast<double>(*whole) : *real);
    std::memcpy(place, &number, sizeof number);
    return std::isfinite(number);
  }
  if (whole == nullptr || dtype[0] == 'f' || std::abs(*whole) > (dtype == "bool" ? 1 : kLargestWhole)) return false;
  std::memcpy(place, whole, item_size(dtype));
  return number_at(dtype, place) == static_cast<double>(*whole);
}

struct Answers {
  std::optional<std::int64_t> segment_len, mem_len;
  std::int64_t count = 0;  // of scores or steps
  Ids tokens;
  std::vector<double> log_probs, bounds;
  std::vector<Series> inputs, outputs;  // of a step model
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

// The series of all `tensors`, and of no others.
std::vector<Series> read_series(Fields fields, const std::vector<Tensor>& tensors, std::int64_t steps) {
  std::vector<Series> found;
  for (const Tensor& tensor : tensors) {
    const auto bytes = static_cast<std::size_t>(step_bytes(tensor)), item = item_size(tensor.dtype);
    const json::Array& list = fields.list(tensor.name.c_str());
    if (list.size() != static_cast<std::size_t>(steps) * bytes / item) {
      throw fields.error(shown(tensor.name) + " has " + std::to_string(list.size()) + " numbers");
    }
    found.push_back({&tensor, bytes, std::string(list.size() * item, '\0')});
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (put(list[i], tensor.dtype, &found.back().data[i * item])) continue;
      throw fields.error(shown(tensor.name) + "[" + std::to_string(i) + "] is not a number of " + tensor.dtype);
    }
  }
  fields.end();
  return found;
}

void read_steps(Fields& fields, const Graph& graph, Answers& answers) {
  answers.count = fields.integer("steps", 1, kLargestFile);
  answers.inputs = read_series(fields.object("inputs"), graph.fed, answers.count);
  answers.outputs = read_series(fields.object("outputs"), graph.outputs, answers.count);
  Fields bounds = fields.object("bounds");
  for (Series& output : answers.outputs) {
    output.bound = bounds.get<double>(output.tensor->name.c_str(), "a number");
    if (!(output.bound > 0)) throw bounds.error(shown(output.tensor->name) + " is not above 0");
  }
  bounds.end();
}

void read_tokens(Fields& fields, const Bundle& bundle, Answers& answers) {
  for (const json::Value& token : fields.list("tokens")) {
    const std::string place = "tokens[" + std::to_string(answers.tokens.size()) + "]";
    answers.tokens.push_back(whole(fields, place, token, bundle.vocab_size - 1));
  }
  const std::size_t n = answers.tokens.empty() ? 0 : answers.tokens.size() - 1;
  answers.count = static_cast<std::int64_t>(n);
  answers.log_probs = numbers(fields, "log_probs", n, -std::numeric_limits<double>::infinity());
  answers.bounds = numbers(fields, "bounds", n, 0);
  if (!fields.value("margin").is_null()) fields.get<double>("margin", "a number or null");
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
  if (bundle.is_step_model()) {
    read_steps(fields, model.best_graph("run"), answers);
  } else {
    read_tokens(fields, bundle, answers);
  }
  Fields memory = fields.object("memory");
  for (const auto& [name, unused] : memory.all()) {
    Ids& shape = answers.memory[name];
    for (const json::Value& size : memory.list(name.c_str())) {
      shape.push_back(whole(memory, shown(name), size, kLargestSize));
    }
  }
  answers.certain = fields.boolean("certain");
  fields.end();
  return answers;
}

const char* unit(const Model& model) { return model.bundle().is_step_model() ? " step" : " token"; }

EvaluationSettings settings_of(const Model& model, const Answers& answers) {
  try {
    EvaluationSettings evaluation(model.bundle(), answers.segment_len, answers.mem_len);
    const std::int64_t longest = evaluation.longest_part().value_or(answers.count);
    if (answers.count > longest) {
      throw Error(XLR_ERROR_TOO_LONG,
                  "has " + std::to_string(answers.count) + unit(model) + "s to read, the model reads " +
                      std::to_string(longest) + ".",
                  "");
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
std::optional<std::string> other_shape(const EvaluationSettings& evaluation, const Answers& answers) {
  std::map<std::string, Ids> found;
  for (const MemoryEntry& entry : evaluation.bundle().memory) {
    found[entry.input] = memory_sizes(entry, evaluation, evaluation.capacity());
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

// A walk over the answers, which stops in time.
struct Walk {
  Model& model;
  const Answers& answers;
  const EvaluationSettings& evaluation;
  std::function<bool()> is_late;
  Check& check;  // whose `tokens` are the place
  bool differs = false;

  bool goes_on() const { return check.tokens < answers.count && !(check.tokens > 0 && is_late()); }

  // Compare a number with its answer; the first that differs is the problem.
  void compare(const std::string& what, double found, double expected, double bound) {
    const double difference = std::abs(found - expected) / bound;
    check.largest = std::max(check.largest, std::isnan(difference) ? 0 : difference);
    if (difference <= 1 || differs) return;
    differs = true;
    std::ostringstream text;
    text.precision(7);
    text << unit(model) + 1 << " " << check.tokens + 1 << " of the known answers has " << what << " " << found
         << ", expected " << expected << " within " << bound;
    check.problem = text.str();
  }
};

void walk_tokens(Walk& walk) {
  const Answers& answers = walk.answers;
  const auto memory = walk.model.new_memory(walk.evaluation, walk.evaluation.capacity());
  const std::int64_t most = walk.model.longest_step("score", walk.evaluation.segment_len());
  while (walk.goes_on()) {
    const auto first = answers.tokens.begin() + walk.check.tokens;
    const std::int64_t S = std::min({memory->max_segment(), most, answers.count - walk.check.tokens});
    const std::vector<Result> results =
        walk.model.step("score", *memory, Ids(first, first + S), Ids(first + 1, first + S + 1));
    const float* const found = result_of(results, "log_prob", "float32", S).data<float>();
    for (std::int64_t i = 0; i < S; ++i, ++walk.check.tokens) {
      const auto place = static_cast<std::size_t>(walk.check.tokens);
      walk.compare("the log-probability", static_cast<double>(found[i]), answers.log_probs[place],
                   answers.bounds[place]);
    }
  }
}

void walk_steps(Walk& walk, StepStream&& stream) {
  while (walk.goes_on()) {
    const auto begin = static_cast<std::size_t>(walk.check.tokens), all = static_cast<std::size_t>(walk.answers.count);
    const std::size_t S = std::min(static_cast<std::size_t>(walk.evaluation.segment_len()), all - begin);
    std::vector<std::vector<std::string>> rows;
    const auto tensors_of = [&](const std::vector<Series>& series) {
      std::vector<std::string>& data = rows.emplace_back(series.size());
      std::vector<xlr_tensor> tensors;
      for (std::size_t i = 0; i < series.size(); ++i) {
        const auto& [tensor, bytes, own, bound] = series[i];
        for (std::int64_t row = 0; row < stream.rows(); ++row) data[i].append(own, begin * bytes, S * bytes);
        tensors.push_back({tensor->name.c_str(), tensor->dtype.c_str(), data[i].data(), data[i].size()});
      }
      return tensors;
    };
    const auto inputs = tensors_of(walk.answers.inputs), outputs = tensors_of(walk.answers.outputs);
    stream.run(inputs.data(), inputs.size(), outputs.data(), outputs.size(), S);  // which overwrites the outputs
    for (std::size_t step = 0; step < S; ++step, ++walk.check.tokens) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto& [tensor, bytes, own, bound] = walk.answers.outputs[i];
        for (std::size_t at = step * bytes; at < (step + 1) * bytes; at += item_size(tensor->dtype)) {
          const double found = number_at(tensor->dtype, &rows[1][i][at]);
          walk.compare("the output " + shown(tensor->name), found, number_at(tensor->dtype, &own[begin * bytes + at]),
                       bound);
        }
      }
    }
  }
}

}  // namespace

bool has_known_answers(const Model& model) { return model.bundle().files.count(kAnswersFile) != 0; }

std::optional<Check> check_known_answers(const std::shared_ptr<Model>& model, double seconds) {
  if (!has_known_answers(*model)) return std::nullopt;
  model->require_unchanged();
  const Answers answers = read(*model);
  const EvaluationSettings evaluation = settings_of(*model, answers);
  Check check;
  check.certain = answers.certain;
  check.problem = other_shape(evaluation, answers);
  const auto began = std::chrono::steady_clock::now();
  const auto is_late = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > seconds;
  };
  Walk walk{*model, answers, evaluation, is_late, check};
  if (model->bundle().is_step_model()) {
    walk_steps(walk, StepStream(model, evaluation, 0));
  } else {
    walk_tokens(walk);
  }
  return check;
}

}  // namespace xlruntime
