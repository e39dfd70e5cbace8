#include "model.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "messages.h"
#include "output_check.h"

namespace xlruntime {
namespace {

constexpr std::size_t kKeptConstants = 4;  // sets of positional keys kept for later streams

}  // namespace

Model::Model(const std::filesystem::path& folder, const Onnxruntime& ort, const SessionOptions& options,
             bool check_files)
    : folder_(folder), ort_(ort), options_(options), bundle_(read_manifest(folder)), files_(folder, bundle_) {
  if (check_files) check_digests(folder, bundle_.guarded_files());
  tokenizer_ = make_tokenizer(bundle_.tokenizer, folder);
  session("score");  // fail now, not at the first document
  files_.require();
  first_values_ = read_first_values(folder, bundle_);
  files_.require();
}

EvaluationSettings Model::evaluation(const EvaluationChoice& choice) const {
  try {
    return bundle_.evaluation.choose(choice);
  } catch (const Error& error) {
    throw Error(error.code, folder_.string() + ": " + error.message, error.repair);
  }
}

std::unique_ptr<StreamMemory> Model::new_memory(const EvaluationSettings& evaluation, std::int64_t capacity) {
  if (evaluation.max_segment(capacity) < 1) {
    throw Error(ErrorCode::option, "a capacity of " + std::to_string(capacity) + " slots is too small for a segment: " +
                                       std::to_string(evaluation.most_rows()) + " rows are kept.");
  }
  MemoryPlan plan{ort_, bundle_, first_values_, nullptr, evaluation, capacity};
  check_room(plan);  // before constants of such a capacity are made
  plan.constants = constants(evaluation, capacity);
  return std::make_unique<StreamMemory>(std::move(plan));
}

std::vector<Output> Model::step(const std::string& purpose, StreamMemory& memory,
                                const std::vector<std::int64_t>& tokens, const std::vector<std::int64_t>& targets) {
  static const std::string kTokens = "tokens", kTargets = "targets";
  const auto S = static_cast<std::int64_t>(tokens.size());
  const EvaluationSettings& evaluation = memory.evaluation();
  if (S < 1 || S > memory.max_segment()) {
    throw Error(ErrorCode::option,
                "a segment of " + std::to_string(S) + " tokens does not fit: a ring of " +
                    std::to_string(memory.capacity()) + " slots that keeps " + std::to_string(evaluation.most_rows()) +
                    " rows takes 1 to " + std::to_string(memory.max_segment()) + ".",
                "Split it.");
  }
  if (const std::int64_t room = memory.room(); room < S) {
    throw Error(ErrorCode::option,
                "a segment of " + std::to_string(S) + " tokens does not fit: a row has room for " +
                    std::to_string(room) + " more, as the model reads at most " +
                    std::to_string(evaluation.longest_part().value_or(0)) + " tokens of a document.",
                "Restart the row.");
  }
  const std::string& name = graph_for(purpose, S);
  const Session& graph = session(name);
  StepNumbers numbers(ort_);
  Bindings inputs, written;
  numbers.add(graph, inputs, kTokens, tokens, {1, S});
  numbers.add(graph, inputs, kTargets, targets, {1, S});
  memory.bind(graph, numbers, inputs, written);
  std::vector<Output> outputs = graph.run(inputs, written, 1, S);
  for (const Output& output : outputs) {
    require_range(graph.file(), *output.name, output.dtype, output.data<void>(),
                  static_cast<std::size_t>(elements(output.shape)), bundle_.vocab_size);
  }
  memory.advance(S);
  return outputs;
}

std::int64_t Model::longest_step(const std::string& purpose, std::int64_t segment) const {
  std::int64_t longest = 0;
  for (const auto* entry : graphs_for(purpose)) {
    longest = std::max(longest, entry->second.max_segment.value_or(segment));
  }
  return longest == 0 ? segment : std::min(segment, longest);
}

void Model::check_detail(std::int64_t detail) {
  session("detail");
  const Tensor* top_ids = bundle_.graphs.find("detail")->output("top_ids");
  const std::int64_t most = top_ids->shape.back().size;
  if (detail < 0 || detail > most) {
    throw Error(ErrorCode::option, "detail is " + std::to_string(detail) + ", expected 0 to " + std::to_string(most) +
                                       ", the likeliest tokens that this bundle lists.");
  }
}

std::vector<const std::pair<std::string, Graph>*> Model::graphs_for(const std::string& purpose) const {
  std::vector<const std::pair<std::string, Graph>*> found;
  for (const std::string& wanted : {purpose + "_few", purpose}) {
    for (const auto& entry : bundle_.graphs) {
      if (entry.first == wanted) found.push_back(&entry);
    }
  }
  return found;
}

const std::string& Model::graph_for(const std::string& purpose, std::int64_t segment) const {
  const auto variants = graphs_for(purpose);
  for (const auto* entry : variants) {
    if (segment <= entry->second.max_segment.value_or(segment)) return entry->first;
  }
  if (variants.empty()) return purpose;  // which `session` refuses
  throw Error(ErrorCode::option,
              "a segment of " + std::to_string(segment) + " tokens does not fit: the graph for '" + purpose +
                  "' takes 1 to " + std::to_string(longest_step(purpose, segment)) + ".",
              "Split it.");
}

const Session& Model::session(const std::string& name) {
  if (const Session* opened = opened_session(name)) return *opened;
  const std::lock_guard<std::mutex> one_at_a_time(opening_);
  if (const Session* opened = opened_session(name)) return *opened;
  auto made = open(name);
  const std::lock_guard<std::mutex> guard(lock_);
  return *(sessions_[name] = std::move(made));
}

const Session* Model::opened_session(const std::string& name) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Session> Model::open(const std::string& name) {
  const Graph* graph = bundle_.graphs.find(name);
  if (graph == nullptr) {
    std::vector<std::string> have;
    for (const auto& [purpose, unused] : bundle_.graphs) have.push_back(purpose);
    std::sort(have.begin(), have.end());
    throw Error(ErrorCode::option,
                folder_.string() + ": no graph for '" + name + "'; this bundle has " + joined(have, ", ") + ".");
  }
  const std::string file = (folder_ / graph->file).string();
  if (graph->format != GraphFormat::onnx) {
    throw Error(ErrorCode::bundle, file + ": a file of PyTorch, which this runtime does not run.",
                "Convert the checkpoint again with --to onnx.");
  }
  files_.require();
  auto session = std::make_unique<Session>(ort_, folder_, bundle_, *graph, options_);
  files_.require();
  if (session->metadata() != graph->metadata(bundle_.memory)) {
    throw Error(ErrorCode::bundle, file + ": its metadata differs from the manifest.", "Convert the checkpoint again.");
  }
  return session;
}

std::shared_ptr<const Constants> Model::constants(const EvaluationSettings& evaluation, std::int64_t capacity) {
  const Graph* graph = bundle_.graphs.find("positions");
  if (graph == nullptr) return std::make_shared<Constants>();  // nothing depends on distances
  NamedList<std::int64_t> given = evaluation.inputs();
  for (const auto& [symbol, ring] : evaluation.rules().rings) {
    if (!given.contains(symbol)) given.add(symbol, evaluation.slots(symbol, capacity));
  }
  ConstantsKey key;
  for (const Tensor& tensor : graph->inputs) {
    if (const auto* number = given.find(tensor.name)) key.push_back(*number);
  }
  const std::lock_guard<std::mutex> one_at_a_time(opening_);
  for (const auto& [known, values] : constants_) {
    if (known == key) return values;
  }
  const auto session = open("positions");  // not kept open: it holds weights and buffers of its own
  StepNumbers numbers(ort_);
  Bindings inputs;
  for (const auto& [name, number] : given) numbers.add(*session, inputs, name, number);
  auto made = std::make_shared<Constants>();
  for (const Output& output : session->run(inputs, {}, 0, 0)) {
    Buffer buffer(ort_, output.dtype, output.shape);
    std::memcpy(buffer.data(), output.data<void>(), buffer.nbytes());
    made->emplace_back(*output.name, std::move(buffer));
  }
  if (constants_.size() == kKeptConstants) constants_.erase(constants_.begin());  // streams hold what they use
  constants_.emplace_back(std::move(key), made);
  return made;
}

const Output& output_of(const std::vector<Output>& outputs, const char* name) {
  return *std::find_if(outputs.begin(), outputs.end(), [&](const Output& output) { return *output.name == name; });
}

}  // namespace xlruntime
