#include "model.h"

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "safetensors.h"

extern "C" const char* xlexport_ops_operator(std::uint64_t number);  // that has a kernel, which is linked in, or nullptr

namespace xlruntime {
namespace {

constexpr const char* kConvertAgain = "Convert the checkpoint again with xlexport convert.";
constexpr std::size_t kKeptConstants = 4;  // sets of positional keys kept for later streams

// The bundle without the choices of steps that a CPU, with these kernels or without, cannot run.
Bundle runnable(Bundle bundle, bool kernels) {
  std::set<std::string> known;
  while (const char* name = kernels ? xlexport_ops_operator(known.size()) : nullptr) known.insert(name);
  const auto cannot_run = [&](const Choice& choice) {
    const auto is_known = [&](const std::string& name) { return known.count(name) != 0; };
    return choice.accelerator || !std::all_of(choice.kernels.begin(), choice.kernels.end(), is_known);
  };
  for (auto& [purpose, choices] : bundle.steps) {
    choices.erase(std::remove_if(choices.begin(), choices.end(), cannot_run), choices.end());
  }
  return bundle;
}

// The size of the batch, or the slots of a ring.
std::int64_t size_of(const std::string& axis, const Memory& memory) {
  for (const Ring& ring : memory.evaluation().bundle().rings) {
    if (ring.symbol == axis) return memory.evaluation().slots(ring, memory.capacity());
  }
  return 1;
}

// The tokens that a graph takes of a step of S: all or none, unless it fixes `segment`: then it takes so many.
std::int64_t tokens_of(const Graph& graph, const Memory& memory, std::int64_t S) {
  const bool fits = std::all_of(graph.fixed.begin(), graph.fixed.end(), [&](const auto& axis) {
    return axis.first == "segment" || axis.second == size_of(axis.first, memory);
  });
  const std::int64_t taken = graph.fixed_or("segment", S);
  return fits && taken <= S ? taken : 0;
}

std::vector<Result>::const_iterator find(const std::vector<Result>& results, const std::string& name) {
  const auto has_name = [&](const Result& result) { return result.output->name == name; };
  return std::find_if(results.begin(), results.end(), has_name);
}

// The results of consecutive parts of a step, as if one graph had returned them: those for each token one after the
// other, and of the others the last.
std::vector<Result> joined(const Onnxruntime& ort, std::vector<std::vector<Result>> parts) {
  for (Result& result : parts.back()) {
    const std::vector<Axis>& axes = result.output->shape;
    if (parts.size() == 1 || axes.size() < 2 || axes[1].name != "segment") continue;
    std::int64_t tokens = 0;
    std::string bytes;
    for (const std::vector<Result>& part : parts) {
      const Result& piece = *find(part, result.output->name);  // all graphs of a purpose have the same outputs
      tokens += piece.shape[1];
      const std::size_t item = item_size(piece.output->dtype);
      bytes.append(piece.data<char>(), static_cast<std::size_t>(elements(piece.shape)) * item);
    }
    result.shape[1] = tokens;
    result.joined.emplace(ort, "uint8", std::vector<std::int64_t>{static_cast<std::int64_t>(bytes.size())});
    std::memcpy(result.joined->data(), bytes.data(), bytes.size());
  }
  return std::move(parts.back());
}

}  // namespace

Model::Model(const std::filesystem::path& folder, const Onnxruntime& ort, const SessionOptions& options,
             const char* digest, bool check_files)
    : folder_(folder),
      ort_(ort),
      options_(options),
      bundle_(runnable(Bundle::read(folder, digest), options.kernels)),
      files_(folder, bundle_, check_files) {
  if (!ort.is_at_least(bundle_.onnxruntime)) {
    throw Error(XLR_ERROR_BUNDLE_FORMAT,
                folder.string() + ": needs ONNX Runtime " + bundle_.onnxruntime + ", not " + ort.version() + ".",
                "Install a newer ONNX Runtime.");
  }
  tokenizer_ = make_tokenizer(bundle_, folder);
  first_values_ = read_first_values(folder, bundle_);
  const std::vector<Choice>& steps = choices(bundle_.is_step_model() ? "run" : "score");
  const auto shorter = [](const Choice& a, const Choice& b) { return a.max_segment < b.max_segment; };
  const Choice& longest = *std::max_element(steps.begin(), steps.end(), shorter);  // for the longest steps
  session(bundle_.graphs[longest.graph]);  // fail now, not at the first document
}

std::unique_ptr<Memory> Model::new_memory(const EvaluationSettings& evaluation, std::int64_t capacity) {
  const Graph& score = *bundle_.graph("score");
  if (const std::int64_t batch = score.fixed_or("batch", 1); batch != 1) {
    throw Error(XLR_ERROR_OPTION, folder_.string() + ": its batch is of " + std::to_string(batch) + " rows, not one.",
                "Convert the checkpoint again with --fixed batch=1.");
  }
  const std::int64_t longest = longest_step("score", evaluation.segment_len());
  if (!score.fixed.empty() && evaluation.segmentation_matters() && evaluation.segment_len() > longest) {
    throw Error(XLR_ERROR_OPTION,
                "segment_len is " + std::to_string(evaluation.segment_len()) + ", at most " + std::to_string(longest) +
                    " is possible: scores depend on it, and shapes are fixed.",
                "Choose a smaller one, or convert with another --fixed.");
  }
  check_capacity(evaluation, capacity);  // before constants of such a capacity are made
  return std::make_unique<Memory>(ort_, first_values_, evaluation, capacity, constants(evaluation, capacity));
}

std::vector<Result> Model::step(const std::string& purpose, Memory& memory, const std::vector<std::int64_t>& tokens,
                                const std::vector<std::int64_t>& targets) {
  const std::int64_t length = memory.counters().length;
  std::vector<std::vector<Result>> parts;
  for (std::size_t begin = 0; begin < tokens.size();) {
    const auto rest = static_cast<std::int64_t>(tokens.size() - begin);
    const Graph& graph = graph_for(purpose, memory, rest);
    const std::int64_t n = tokens_of(graph, memory, rest);
    const auto part = [&](const std::vector<std::int64_t>& ids) {
      const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::vector<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(n));
    };
    // Each token sees as many others as in one step.
    const std::int64_t visible = length + static_cast<std::int64_t>(begin);
    parts.push_back(memory.step(session(graph), part(tokens), part(targets), visible));
    begin += static_cast<std::size_t>(n);
  }
  return joined(ort_, std::move(parts));
}

// The graph for the first tokens of a step of S.
const Graph& Model::graph_for(const std::string& purpose, const Memory& memory, std::int64_t S) const {
  for (const Choice& choice : choices(purpose)) {
    const Graph& graph = bundle_.graphs[choice.graph];
    if (S <= choice.max_segment && tokens_of(graph, memory, S) != 0) return graph;
  }
  throw Error(XLR_ERROR_OPTION, "no graph for '" + purpose + "' takes " + std::to_string(S) + " tokens.", "Split them.");
}

std::int64_t Model::longest_step(const std::string& purpose, std::int64_t segment) const {
  std::int64_t longest = 0;
  for (const Choice& choice : choices(purpose)) {
    longest = std::max(longest, bundle_.graphs[choice.graph].fixed_or("segment", choice.max_segment));
  }
  return std::min(segment, longest);
}

std::int64_t Model::check_top(std::int64_t top) const {
  const Graph& graph = best_graph("detail");
  const auto listing = std::find_if(graph.outputs.begin(), graph.outputs.end(),
                                    [](const Tensor& output) { return output.name == "top_ids"; });
  const bool is_listed = listing != graph.outputs.end() && !listing->shape.empty();
  const std::int64_t most = is_listed ? listing->shape.back().size : 0;
  if (top >= 0 && top <= most) return most;
  throw Error(XLR_ERROR_OPTION, "top is " + std::to_string(top) + ", expected 0 to " + std::to_string(most) +
                                    ", the likeliest tokens that this bundle lists.");
}

Drawable Model::drawable() const {
  const std::int64_t own = bundle_.tokenizer.size.value_or(tokenizer_->size().value_or(bundle_.vocab_size));
  const std::int64_t size = std::min(own, bundle_.vocab_size);
  return {static_cast<std::size_t>(size), bundle_.tokenizer.ends};
}

const std::vector<Choice>& Model::choices(const std::string& purpose) const {
  const auto place = bundle_.steps.find(purpose);
  if (place != bundle_.steps.end() && !place->second.empty()) return place->second;
  throw Error(XLR_ERROR_OPTION, folder_.string() + ": the bundle has no graph for '" + purpose + "'.");
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

const Result& result_of(const std::vector<Result>& results, const char* name, const char* dtype, std::int64_t count) {
  const auto place = find(results, name);
  if (place != results.end() && place->output->dtype == dtype && elements(place->shape) == count) return *place;
  const std::string expected = std::to_string(count) + " numbers of " + dtype;
  throw Error(XLR_ERROR_BUNDLE_GRAPH, std::string(name) + " of a graph is not " + expected + ".", kConvertAgain);
}

}  // namespace xlruntime
