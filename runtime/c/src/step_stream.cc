#include "step_stream.h"

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "safetensors.h"

namespace xlruntime {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 52;  // that a saved stream counts
constexpr std::size_t kMostPlans = 8;
constexpr const char* kFewerRows = "Open a stream of fewer rows.";

Error argument(const std::string& problem, const char* hint = "") { return Error(XLR_ERROR_ARGUMENT, problem, hint); }

// Bytes of one step of one row of all tensors.
double bytes_of(const std::vector<Tensor>& tensors) {
  double total = 0;
  for (const Tensor& tensor : tensors) total += static_cast<double>(step_bytes(tensor));
  return total;
}

// The graph whose tensors the caller gives. Throws XLR_ERROR_OPTION: the model does not run such a stream.
const Graph& checked_graph(const Model& model, std::int64_t rows) {
  const Bundle& bundle = model.bundle();
  const auto refuse = [&](const std::string& problem, const char* hint = "") {
    return Error(XLR_ERROR_OPTION, model.folder().string() + ": " + problem + ".", hint);
  };
  if (!bundle.is_step_model()) throw refuse("a language model, which takes tokens", "Call xlr_stream_open.");
  const Graph& graph = model.best_graph("run");
  if (rows == 0) rows = graph.fixed_or("batch", 1);
  if (rows < 1 || rows > kLargestLength) {
    throw refuse("rows is " + std::to_string(rows) + ", expected 1 to " + std::to_string(kLargestLength));
  }
  if (const std::int64_t batch = graph.fixed_or("batch", rows); batch != rows) {
    throw refuse("its graphs take " + std::to_string(batch) + " rows, not " + std::to_string(rows),
                 "Open a stream of so many rows, or convert with another --fixed.");
  }
  double bytes = bytes_of(graph.fed) + bytes_of(graph.outputs);
  for (const MemoryEntry& entry : bundle.memory) {
    if (entry.layout != Layout::state) throw refuse("the memory " + shown(entry.input) + " is not a state");
    double size = 2 * static_cast<double>(item_size(entry.dtype));
    for (std::size_t i = 1; i < entry.shape.size(); ++i) size *= static_cast<double>(entry.shape[i].size);
    bytes += size;
  }
  require_memory(bytes * static_cast<double>(rows), std::to_string(rows) + " rows", kFewerRows);
  return graph;
}

// Require numbers that a graph can take: the caller's memory may hold anything.
void require_values(const Tensor& tensor, std::string_view data) {
  const auto refuse = [&](const char* problem) { return argument("the input " + shown(tensor.name) + problem); };
  if (!HeldTensor{tensor.dtype, {}, data}.is_finite()) throw refuse(" is not finite.");
  if (tensor.dtype == "bool" && std::any_of(data.begin(), data.end(), [](char value) { return (value & ~1) != 0; })) {
    throw refuse(" has a bool that is neither 0 nor 1.");
  }
}

// Copy `n` steps of each row between a buffer that holds them and a tensor of `all` steps, from step `begin` on.
void copy_steps(char* buffer, char* tensor, bool to_tensor, std::int64_t rows, std::int64_t n, std::int64_t begin,
                std::int64_t all, std::int64_t bytes) {
  for (std::int64_t row = 0; row < rows; ++row) {
    char *const own = buffer + row * n * bytes, *const other = tensor + (row * all + begin) * bytes;
    std::memcpy(to_tensor ? other : own, to_tensor ? own : other, static_cast<std::size_t>(n * bytes));
  }
}

}  // namespace

StepStream::StepStream(std::shared_ptr<Model> model, const EvaluationSettings& evaluation, std::int64_t rows)
    : model_(std::move(model)),
      evaluation_(evaluation),
      graph_(checked_graph(*model_, rows)),
      rows_(rows == 0 ? graph_.fixed_or("batch", 1) : rows),
      longest_(model_->longest_step("run", evaluation_.segment_len())),
      positions_(model_->ort(), "int64", {rows_}) {
  for (const MemoryEntry& entry : model_->bundle().memory) {
    std::vector<std::int64_t> sizes = memory_sizes(entry, evaluation_, evaluation_.capacity());
    sizes[0] = rows_;
    states_.push_back({Buffer(model_->ort(), entry.dtype, sizes), Buffer(model_->ort(), entry.dtype, sizes)});
  }
  reset();
}

StepStream::StepStream(const StepStream& other) : StepStream(other.model_, other.evaluation_, other.rows_) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Buffer& theirs = other.states_[i][other.now_];
    std::memcpy(states_[i][now_].data(), theirs.data(), theirs.nbytes());
  }
  std::copy_n(other.counts(), rows_, counts());
  steps_ = other.steps_;
}

std::unique_ptr<StepStream> StepStream::restore(std::shared_ptr<Model> model, const std::filesystem::path& file) {
  const State state = State::read(file, model->bundle());
  const auto rows = static_cast<std::int64_t>(state.positions.size());
  if (const std::int64_t batch = model->best_graph("run").fixed_or("batch", rows); batch != rows) {
    throw Error(XLR_ERROR_STATE_MISMATCH, file.string() + ": saved with " + std::to_string(rows) +
                                              " rows, but the graphs take " + std::to_string(batch) + ".");
  }
  auto stream = std::make_unique<StepStream>(std::move(model), state.evaluation, rows);
  for (std::size_t i = 0; i < state.data.size(); ++i) {
    std::memcpy(stream->states_[i][0].data(), state.data[i].data(), state.data[i].size());
  }
  std::copy(state.positions.begin(), state.positions.end(), stream->counts());
  stream->steps_ = state.counters.offset;
  return stream;
}

void StepStream::reset() {
  for (std::int64_t row = 0; row < rows_; ++row) fill(static_cast<std::size_t>(row));
}

void StepStream::reset(std::size_t row) {
  if (row >= static_cast<std::size_t>(rows_)) {
    throw argument("row is " + std::to_string(row) + ", expected 0 to " + std::to_string(rows_ - 1) + ".");
  }
  fill(row);
}

void StepStream::fill(std::size_t row) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Buffer& state = states_[i][now_];
    const std::string& value = model_->first_values()[i];
    const std::size_t bytes = state.nbytes() / static_cast<std::size_t>(rows_);
    char* const place = static_cast<char*>(state.data()) + row * bytes;
    if (value.empty()) {
      std::memset(place, 0, bytes);
    } else {
      std::memcpy(place, value.data(), bytes);
    }
  }
  counts()[row] = 0;
}

void StepStream::save(const std::filesystem::path& file) const {
  std::vector<const Buffer*> states;
  for (const auto& state : states_) states.push_back(&state[now_]);
  State::write_rows(file, evaluation_, steps_, {counts(), counts() + rows_}, states);
}

std::size_t StepStream::nbytes() const {
  std::size_t total = 0;
  for (const auto& state : states_) total += state[0].nbytes() + state[1].nbytes();
  return total;
}

void StepStream::run(const xlr_tensor* inputs, std::size_t input_count, const xlr_tensor* outputs,
                     std::size_t output_count, std::size_t steps) {
  if (steps < 1 || steps > std::uint64_t{kMostSteps}) {
    throw argument("steps is " + std::to_string(steps) + ", expected at least 1.");
  }
  const auto all = static_cast<std::int64_t>(steps);
  match(graph_.fed, inputs, input_count, steps, "input", given_);
  match(graph_.outputs, outputs, output_count, steps, "output", taken_);
  for (std::size_t i = 0; i < graph_.fed.size(); ++i) {
    const Tensor& tensor = graph_.fed[i];
    if (given_[i] == nullptr) throw argument("the input " + shown(tensor.name) + " is missing.");
    require_values(tensor, {given_[i], static_cast<std::size_t>(step_bytes(tensor) * rows_ * all)});
  }
  const std::int64_t read = *std::max_element(counts(), counts() + rows_);
  const std::int64_t most = evaluation_.longest_part().value_or(kMostSteps);
  if (all > std::min(most - read, kMostSteps - steps_)) {
    throw Error(XLR_ERROR_TOO_LONG, std::to_string(all) + " steps after " + std::to_string(read) +
                                        ", but the model takes at most " + std::to_string(most) + ".",
                "Reset the row that has taken so many.");
  }
  std::int64_t done = 0;
  try {
    while (done < all) {
      const Plan& plan = plan_for(std::min(all - done, longest_));
      if (done == 0 && plan.steps < all) keep();
      advance(plan, done, all);
      done += plan.steps;
    }
  } catch (...) {
    if (done > 0) go_back(done);
    throw;
  }
}

// Find the caller's tensors, in the order of `wanted`; null: not given.
void StepStream::match(const std::vector<Tensor>& wanted, const xlr_tensor* given, std::size_t count, std::size_t steps,
                       const char* kind, std::vector<char*>& places) const {
  places.assign(wanted.size(), nullptr);
  if (count > wanted.size()) {
    throw argument(std::to_string(count) + " " + kind + "s, but the model has " + std::to_string(wanted.size()) + ".");
  }
  if (count > 0 && given == nullptr) throw argument(std::string(kind) + "s is NULL, but their number is not 0.");
  for (const xlr_tensor* each = given; each != given + count; ++each) {
    if (each->name == nullptr || each->dtype == nullptr || each->data == nullptr) {
      throw argument(std::string("the name, dtype or data of an ") + kind + " is NULL.");
    }
    const auto is_named = [&](const Tensor& tensor) { return tensor.name == each->name; };
    const auto found = std::find_if(wanted.begin(), wanted.end(), is_named);
    const auto refuse = [&](const std::string& problem) {
      return argument(std::string("the ") + kind + " " + shown(each->name) + " " + problem + ".");
    };
    if (found == wanted.end()) throw refuse("is not one of the model");
    char*& place = places[static_cast<std::size_t>(found - wanted.begin())];
    if (place != nullptr) throw refuse("is given twice");
    if (found->dtype != each->dtype) throw refuse("is of " + shown(each->dtype) + ", expected " + found->dtype);
    const auto bytes = static_cast<std::size_t>(step_bytes(*found) * rows_);  // of a step; steps may be any number
    if (each->bytes % bytes != 0 || each->bytes / bytes != steps) {
      throw refuse("has " + std::to_string(each->bytes) + " bytes, expected " + std::to_string(bytes) + " times " +
                   std::to_string(steps) + " steps");
    }
    place = static_cast<char*>(each->data);
  }
}

// Run the part of a call of `all` steps that comes after `done` of them.
void StepStream::advance(const Plan& plan, std::int64_t done, std::int64_t all) {
  const std::int64_t n = plan.steps;
  for (std::size_t i = 0; i < given_.size(); ++i) {
    copy_steps(static_cast<char*>(plan.inputs[i].data()), given_[i], false, rows_, n, done, all,
               step_bytes(graph_.fed[i]));
  }
  plan.session->run(plan.read[now_], plan.written[now_]);
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    if (taken_[i] == nullptr) continue;
    copy_steps(static_cast<char*>(plan.outputs[i].data()), taken_[i], true, rows_, n, done, all,
               step_bytes(graph_.outputs[i]));
  }
  now_ = 1 - now_;
  for (std::int64_t row = 0; row < rows_; ++row) counts()[row] += n;
  steps_ += n;
}

void StepStream::keep() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Buffer& state = states_[i][now_];
    if (kept_.size() == i) kept_.emplace_back(model_->ort(), state.dtype(), state.shape());
    std::memcpy(kept_[i].data(), state.data(), state.nbytes());
  }
}

void StepStream::go_back(std::int64_t steps) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    std::memcpy(states_[i][now_].data(), kept_[i].data(), kept_[i].nbytes());
  }
  for (std::int64_t row = 0; row < rows_; ++row) counts()[row] -= steps;
  steps_ -= steps;
}

// The plan for the first of `steps` steps, valid until the next one is asked for.
const StepStream::Plan& StepStream::plan_for(std::int64_t steps) {
  for (const Choice& choice : model_->choices("run")) {
    const Graph& graph = model_->bundle().graphs[choice.graph];
    const std::int64_t taken = graph.fixed_or("segment", steps);
    const bool is_known = graph.fixed.count("batch") + graph.fixed.count("segment") == graph.fixed.size();
    if (!is_known || steps > choice.max_segment || taken > steps || graph.fixed_or("batch", rows_) != rows_) continue;
    for (const Plan& plan : plans_) {
      if (plan.graph == &graph && plan.steps == taken) return plan;
    }
    Plan made = make_plan(graph, taken);
    if (plans_.size() == kMostPlans) plans_.erase(plans_.begin());
    plans_.push_back(std::move(made));
    return plans_.back();
  }
  throw Error(XLR_ERROR_OPTION, "no graph for 'run' takes " + std::to_string(steps) + " steps of " +
                                    std::to_string(rows_) + " rows.");
}

StepStream::Plan StepStream::make_plan(const Graph& graph, std::int64_t steps) const {
  const auto n = static_cast<double>(rows_) * static_cast<double>(steps);
  require_memory(n * (bytes_of(graph.fed) + bytes_of(graph.outputs)), "tensors of " + std::to_string(steps) + " steps",
                 kFewerRows);
  Plan plan{&graph, steps, &model_->session(graph)};
  const auto make = [&](const std::vector<Tensor>& tensors, std::vector<Buffer>& buffers) {
    for (const Tensor& tensor : tensors) {
      std::vector<std::int64_t> sizes{rows_, steps};
      for (std::size_t i = 2; i < tensor.shape.size(); ++i) sizes.push_back(tensor.shape[i].size);
      buffers.emplace_back(model_->ort(), tensor.dtype, std::move(sizes));
    }
  };
  make(graph_.fed, plan.inputs);  // graphs list equal tensors, in any order
  make(graph_.outputs, plan.outputs);
  const auto value = [](const std::vector<Tensor>& tensors, const std::string& name, const std::vector<Buffer>& own) {
    const auto is_named = [&](const Tensor& tensor) { return tensor.name == name; };
    const auto place = std::find_if(tensors.begin(), tensors.end(), is_named);
    return own[static_cast<std::size_t>(place - tensors.begin())].value();
  };
  for (const std::size_t now : {0, 1}) {
    std::size_t memories = 0;
    for (const Input& input : graph.inputs) {
      if (input.feed == Feed::memory) {
        const auto& state = states_[input.index];
        plan.read[now].add(input.name, state[now].value());
        plan.written[now].add(model_->bundle().memory[input.index].output, state[1 - now].value());
        ++memories;
      } else {
        const bool is_position = input.feed == Feed::position;
        plan.read[now].add(input.name, is_position ? positions_.value() : value(graph_.fed, input.name, plan.inputs));
      }
    }
    for (const Tensor& output : graph.outputs) {
      plan.written[now].add(output.name, value(graph_.outputs, output.name, plan.outputs));
    }
    if (memories == states_.size()) continue;
    throw Error(XLR_ERROR_BUNDLE_GRAPH, graph.file + ": it does not take all memories of the bundle.");
  }
  return plan;
}

}  // namespace xlruntime
