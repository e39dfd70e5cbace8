#include "stream_state.h"

#include <algorithm>

#include "error.h"
#include "json_fields.h"
#include "messages.h"

namespace xlruntime {

namespace {

constexpr const char* kKind = "xlexport stream";
constexpr std::int64_t kVersion = 2;
constexpr std::int64_t kLargestCount = std::int64_t{1} << 62;  // tokens: far from overflowing
constexpr const char* kRepair = "Save the stream again with Stream.save.";

struct StateProblem {
  std::string text;
};

SavedStream read_fields(const json::Object& fields) {
  SavedStream saved;
  Problems problems;
  FieldReader reader(problems);
  const Field evaluation{"evaluation", true, [&](const json::Value& value, const std::string& where) {
                           reader.each_member(value, where, [&](const std::string& name, const json::Value& part,
                                                                const std::string& place) {
                             if (!part.is_integer() && part.as<bool>() == nullptr) {
                               return reader.refuse(part, place, "a whole number or true or false");
                             }
                             saved.evaluation.add(name, part);
                           });
                         }};
  reader.object(fields, "",
                {reader.text("fingerprint", saved.fingerprint), evaluation, reader.integer("capacity", saved.capacity),
                 reader.integer("offset", saved.offset), reader.integer("memory_length", saved.memory_length),
                 reader.integer("history", saved.history), reader.optional_integer("pending", saved.pending, true),
                 reader.integer("position", saved.position)});
  if (problems.count() > 0) throw StateProblem{problems.text()};
  return saved;
}

EvaluationSettings chosen(const SavedStream& saved, const Bundle& bundle) {
  EvaluationChoice choice;
  for (const auto& [name, value] : saved.evaluation) {
    const auto* flag = value.as<bool>();
    if (name == "segment_len" && flag == nullptr) {
      choice.segment_len = clamped(value);
    } else if (name == "restart" && flag != nullptr) {
      choice.restart = *flag;
    } else {
      choice.values.add(name, flag != nullptr ? SettingValue::boolean(*flag) : SettingValue::integer(clamped(value)));
    }
  }
  return bundle.evaluation.choose(choice);
}

// The reasons why no walk under these settings can have this state.
std::vector<std::string> problems_of(const SavedStream& saved, const EvaluationSettings& evaluation,
                                     std::int64_t vocab_size) {
  std::vector<std::string> problems;
  const auto check = [&problems](const char* name, std::int64_t number, std::int64_t most) {
    if (number >= 0 && number <= most) return;
    problems.push_back(std::string(name) + " is " + std::to_string(number) + ", expected 0 to " +
                       std::to_string(most));
  };
  check("offset", saved.offset, kLargestCount);
  check("memory_length", saved.memory_length, evaluation.most_rows());
  check("position", saved.position, kLargestCount);
  check("history", saved.history, saved.position);
  if (saved.pending) check("pending", *saved.pending, vocab_size - 1);
  if (evaluation.max_segment(saved.capacity) < 1) {
    problems.push_back("capacity is " + std::to_string(saved.capacity) + ", but " +
                       std::to_string(evaluation.most_rows()) + " rows are kept");
  }
  if (saved.pending.has_value() == (saved.position == 0)) {
    problems.push_back(std::to_string(saved.position) + " tokens were read, and " +
                       (saved.pending ? std::to_string(*saved.pending) : "None") + " is held");
  }
  return problems;
}

// Whether both have the same values by name, in any order.
bool are_equal(const json::Object& a, const json::Object& b) {
  return json::dump(a, json::Order::sorted) == json::dump(b, json::Order::sorted);
}

std::vector<std::string> tensor_problems(const NamedList<HeldTensor>& tensors, const Bundle& bundle,
                                         const EvaluationSettings& evaluation, std::int64_t capacity) {
  std::vector<std::string> problems;
  for (const Memory& entry : bundle.memory) {
    const std::vector<std::int64_t> sizes = memory_sizes(entry, evaluation, capacity, 1);
    const HeldTensor* found = tensors.find(entry.input);
    if (found == nullptr) {
      problems.push_back(entry.input + " is missing");
    } else if (found->shape != sizes || found->dtype != entry.dtype) {
      problems.push_back(entry.input + " is " + found->dtype + " " + shape_of(found->shape) + ", expected " +
                         entry.dtype + " " + shape_of(sizes));
    } else if (!found->is_finite()) {
      problems.push_back(entry.input + " has numbers that are not finite");
    }
  }
  return problems;
}

// Whether a tensor has the shape of one slot or one state, and floats.
bool can_begin(const Memory& entry, const HeldTensor* tensor) {
  if (tensor == nullptr || tensor->dtype.compare(0, 5, "float") != 0) return false;
  std::vector<std::int64_t> shape;
  for (std::size_t i = 1; i < entry.shape.size(); ++i) {
    if (i != entry.row_axis()) shape.push_back(entry.shape[i].size);
  }
  return tensor->shape == shape && tensor->is_finite();
}

}  // namespace

std::vector<std::int64_t> memory_sizes(const Memory& entry, const EvaluationSettings& evaluation,
                                       std::int64_t capacity, std::int64_t batch) {
  std::vector<std::int64_t> sizes;
  for (const Axis& axis : entry.shape) {
    sizes.push_back(!axis.is_free()       ? axis.size
                    : axis.name == "batch" ? batch
                                           : evaluation.slots(axis.name, capacity));
  }
  return sizes;
}

void write_stream(const std::filesystem::path& path, const SavedStream& saved,
                  const std::vector<TensorView>& tensors) {
  json::Object fields;
  fields.add("fingerprint", saved.fingerprint);
  fields.add("evaluation", saved.evaluation);
  fields.add("capacity", saved.capacity);
  fields.add("offset", saved.offset);
  fields.add("memory_length", saved.memory_length);
  fields.add("history", saved.history);
  fields.add("pending", saved.pending ? json::Value(*saved.pending) : json::Value());
  fields.add("position", saved.position);
  write_state(path, kKind, kVersion, fields, tensors);
}

ReadStream read_stream(const std::filesystem::path& path, const Bundle& bundle, const std::filesystem::path& folder,
                       Limits limits) {
  const std::string where = path.string();
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) {
    throw Error(ErrorCode::file, where + ": no such file; expected a stream's state that Stream.save wrote.");
  }
  State state = read_state(path, kKind, kVersion, kRepair, limits);
  const json::Value* fingerprint = state.fields.find("fingerprint");
  const auto* text = fingerprint == nullptr ? nullptr : fingerprint->as<std::string>();
  if (text == nullptr || *text != bundle.fingerprint()) {
    throw Error(ErrorCode::state, where + ": saved from another bundle than " + folder.string() + ".",
                "Open the one it was saved from.");
  }
  try {
    SavedStream saved = read_fields(state.fields);
    EvaluationSettings evaluation = chosen(saved, bundle);
    if (const auto problems = problems_of(saved, evaluation, bundle.vocab_size); !problems.empty()) {
      throw StateProblem{joined(problems, "; ")};
    }
    if (!are_equal(evaluation.to_json(), saved.evaluation)) {
      std::vector<std::string> names, found;
      for (const auto& [name, value] : evaluation.to_json()) names.push_back(name);
      for (const auto& [name, value] : saved.evaluation) found.push_back(python_repr(name) + ": " + shown_value(value));
      throw StateProblem{"evaluation is {" + joined(found, ", ") + "}, expected " + list_of_names(names)};
    }
    // Check the sizes before any memory is allocated for them.
    const auto problems = tensor_problems(state.tensors, bundle, evaluation, saved.capacity);
    if (!problems.empty()) throw Error(ErrorCode::state, where + ": " + joined(problems, "; ") + ".", kRepair);
    return {std::move(saved), std::move(evaluation), std::move(state.tensors)};
  } catch (const StateProblem& problem) {
    throw Error(ErrorCode::state, where + ": not a stream's state (" + problem.text + ").", kRepair);
  } catch (const Error& error) {
    if (error.code != ErrorCode::option) throw;
    throw Error(ErrorCode::state, where + ": not a stream's state (" + error.what() + ").", kRepair);
  }
}

NamedList<HeldTensor> read_first_values(const std::filesystem::path& folder, const Bundle& bundle) {
  if (std::none_of(bundle.memory.begin(), bundle.memory.end(),
                   [](const Memory& entry) { return entry.first_value.has_value(); })) {
    return {};
  }
  const std::filesystem::path path = folder / kFirstMemoryFile;
  NamedList<HeldTensor> values;
  try {
    Budget budget({}, path.string(), ErrorCode::bundle);
    values = read_safetensors(path, budget).tensors;
  } catch (const Error& error) {
    if (error.code != ErrorCode::bundle) throw;
    throw Error(ErrorCode::bundle, path.string() + ": damaged (" + error.message + ").", "Copy the bundle again.");
  }
  std::vector<std::string> wrong;
  for (const Memory& entry : bundle.memory) {
    if (entry.first_value && !can_begin(entry, values.find(*entry.first_value))) {
      wrong.push_back(*entry.first_value + " for " + entry.input);
    }
  }
  if (wrong.empty()) return values;
  if (wrong.size() > 5) wrong.resize(5);
  throw Error(ErrorCode::bundle, path.string() + ": no such rows: " + joined(wrong, ", ") + ".",
              "Convert the checkpoint again.");
}

}  // namespace xlruntime
