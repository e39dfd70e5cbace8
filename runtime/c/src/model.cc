#include "model.h"

#include <algorithm>
#include <cstring>

#include "errors.h"

namespace xlruntime {
namespace {

constexpr std::size_t kKeptConstants = 4;  // sets of positional keys kept for later streams

// Whether a graph computes `purpose` for one batch row; with a memory, for a step of S tokens on it.
bool computes(const Graph& graph, const std::string& purpose, const Memory* memory = nullptr, std::int64_t S = 0) {
  if (graph.is_static || (graph.name != purpose && graph.variant_of != purpose)) return false;
  if (S > graph.max_segment.value_or(S)) return false;
  return std::all_of(graph.fixed.begin(), graph.fixed.end(), [&](const auto& axis) {
    if (axis.first == "batch") return axis.second == 1;
    if (axis.first == "segment" || memory == nullptr) return axis.second == S;
    const EvaluationSettings& evaluation = memory->evaluation();
    const auto& rings = evaluation.bundle().rings;
    return std::any_of(rings.begin(), rings.end(), [&](const Ring& ring) {
      return ring.symbol == axis.first && evaluation.slots(ring, memory->capacity()) == axis.second;
    });
  });
}

}  // namespace

Model::Model(const std::filesystem::path& folder, const Onnxruntime& ort, const SessionOptions& options,
             const char* digest, bool check_files)
    : folder_(folder),
      ort_(ort),
      options_(options),
      bundle_(Bundle::read(folder, digest)),
      files_(folder, bundle_, check_files) {
  if (!ort.is_at_least(bundle_.onnxruntime)) {
    throw Error(XLR_ERROR_BUNDLE_FORMAT,
                folder.string() + ": needs ONNX Runtime " + bundle_.onnxruntime + ", not " + ort.version() + ".",
                "Install a newer ONNX Runtime.");
  }
  tokenizer_ = make_tokenizer(bundle_.tokenizer, folder);
  first_values_ = read_first_values(folder, bundle_);
  session(require_graph("score"));  // fail now, not at the first document
}

std::unique_ptr<Memory> Model::new_memory(const EvaluationSettings& evaluation, std::int64_t capacity) {
  check_capacity(evaluation, capacity);  // before constants of such a capacity are made
  return std::make_unique<Memory>(ort_, first_values_, evaluation, capacity, constants(evaluation, capacity));
}

std::vector<Result> Model::step(const std::string& purpose, Memory& memory, const std::vector<std::int64_t>& tokens,
                                const std::vector<std::int64_t>& targets) {
  const auto S = static_cast<std::int64_t>(tokens.size());
  const Graph* best = nullptr;
  for (const Graph& graph : bundle_.graphs) {
    if (!computes(graph, purpose, &memory, S)) continue;
    const std::int64_t most = graph.max_segment.value_or(kUnlimited);
    if (best == nullptr || most < best->max_segment.value_or(kUnlimited)) best = &graph;
  }
  return memory.step(session(best == nullptr ? require_graph(purpose) : *best), tokens, targets);
}

std::int64_t Model::longest_step(const std::string& purpose, std::int64_t segment) const {
  std::int64_t longest = 0;
  for (const Graph& graph : bundle_.graphs) {
    if (computes(graph, purpose, nullptr)) longest = std::max(longest, graph.max_segment.value_or(segment));
  }
  return longest == 0 ? segment : std::min(segment, longest);
}

void Model::check_detail(std::int64_t detail) const {
  const Graph& graph = require_graph("detail");
  const auto listing = std::find_if(graph.outputs.begin(), graph.outputs.end(),
                                    [](const Output& output) { return output.name == "top_ids"; });
  const std::int64_t most = listing->shape.back().size;
  if (detail >= 0 && detail <= most) return;
  throw Error(XLR_ERROR_OPTION, "detail is " + std::to_string(detail) + ", expected 0 to " + std::to_string(most) +
                                    ", the likeliest tokens that this bundle lists.");
}

const Graph& Model::require_graph(const std::string& name) const {
  if (const Graph* graph = bundle_.graph(name)) return *graph;
  throw Error(XLR_ERROR_OPTION, folder_.string() + ": the bundle has no graph '" + name + "'.");
}

const Session& Model::session(const Graph& graph) {
  const auto opened = [&]() -> const Session* {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto place = sessions_.find(&graph);
    return place == sessions_.end() ? nullptr : place->second.get();
  };
  if (const Session* known = opened()) return *known;
  const std::lock_guard<std::mutex> one_at_a_time(opening_);
  if (const Session* known = opened()) return *known;
  auto session = open(graph);
  const std::lock_guard<std::mutex> guard(lock_);
  return *(sessions_[&graph] = std::move(session));
}

std::unique_ptr<Session> Model::open(const Graph& graph) {
  if (!graph.is_onnx) {
    throw Error(XLR_ERROR_BUNDLE_FORMAT, (folder_ / graph.file).string() + ": of PyTorch, which this runtime lacks.",
                "Convert the checkpoint again with --to onnx.");
  }
  files_.require_unchanged();
  auto session = std::make_unique<Session>(ort_, folder_, bundle_, graph, options_);
  files_.require_unchanged();
  return session;
}

std::shared_ptr<const Constants> Model::constants(const EvaluationSettings& evaluation, std::int64_t capacity) {
  auto constants = std::make_shared<Constants>();
  const Graph* graph = bundle_.graph("positions");
  if (graph == nullptr) return constants;  // nothing depends on distances
  std::vector<std::int64_t> numbers;
  for (const Input& input : graph->inputs) numbers.push_back(constant_number(input, evaluation, capacity));
  const std::lock_guard<std::mutex> one_at_a_time(opening_);
  for (const auto& [known, values] : constants_) {
    if (known == numbers) return values;
  }
  const auto session = open(*graph);  // not kept open: it holds weights and buffers of its own
  Bindings inputs;
  std::vector<Value> values;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    values.push_back(ort_.tensor(&numbers[i], sizeof numbers[i], {1}, "int64"));
    inputs.add(graph->inputs[i].name, values.back().get());
  }
  for (const Result& result : session->run(inputs, {}, 0, 0)) {
    Buffer buffer(ort_, result.output->dtype, result.shape);
    std::memcpy(buffer.data(), result.data<void>(), buffer.nbytes());
    constants->push_back(std::move(buffer));
  }
  if (constants_.size() == kKeptConstants) constants_.erase(constants_.begin());  // streams hold what they use
  constants_.emplace_back(std::move(numbers), constants);
  return constants;
}

const Result& result_of(const std::vector<Result>& results, const char* name) {
  return *std::find_if(results.begin(), results.end(),
                       [&](const Result& result) { return result.output->name == name; });
}

}  // namespace xlruntime
