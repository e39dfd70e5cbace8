// What the parts of a manifest say together.
#include <set>

#include "manifest_read.h"
#include "messages.h"

namespace xlruntime {

namespace {

using Shape = std::vector<std::string>;

struct Given {
  const char* purpose;
  const char* name;
  const char* dtype;
  Shape shape;  // "vocabulary" and "listed" are sizes that the bundle defines
};

const std::vector<Given>& given_outputs() {
  static const Shape each{"batch", "segment"}, listed{"batch", "segment", "listed"};
  static const std::vector<Given> outputs{
      {"score", "log_prob", "float32", each},       {"generate", "logits", "float32", {"batch", "vocabulary"}},
      {"detail", "log_prob", "float32", each},      {"detail", "rank", "int64", each},
      {"detail", "entropy", "float32", each},       {"detail", "top_ids", "int64", listed},
      {"detail", "top_log_probs", "float32", listed}};
  return outputs;
}

std::string without_suffix(std::string text, std::string_view suffix) {
  if (text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0) {
    text.resize(text.size() - suffix.size());
  }
  return text;
}

bool is_size(const Axis& axis, const std::string& expected, std::int64_t vocab_size) {
  if (expected == "listed") return !axis.is_free() && axis.size <= vocab_size;
  if (expected == "vocabulary") return !axis.is_free() && axis.size == vocab_size;
  return axis.name == expected;
}

bool fits(const Tensor& tensor, const Given& given, std::int64_t vocab_size) {
  if (tensor.dtype != given.dtype || tensor.shape.size() != given.shape.size()) return false;
  for (std::size_t i = 0; i < given.shape.size(); ++i) {
    if (!is_size(tensor.shape[i], given.shape[i], vocab_size)) return false;
  }
  return true;
}

void find_strange_outputs(const std::string& purpose, const Graph& graph, std::int64_t vocab_size,
                          std::vector<std::string>& problems) {
  const std::string plain = without_suffix(without_suffix(purpose, "_few"), "_fixed");
  for (const Given& given : given_outputs()) {
    if (given.purpose != plain) continue;
    const Tensor* tensor = graph.output(given.name);
    const std::string of_graph = "the graph " + python_repr(named(purpose));
    if (tensor == nullptr) {
      problems.push_back(of_graph + " does not return " + given.name);
    } else if (!fits(*tensor, given, vocab_size)) {
      problems.push_back(std::string(given.name) + " of " + of_graph + " is not " + given.dtype + " (" +
                         joined(given.shape, ", ") + ")");
    }
  }
}

// The memories against the score graph, and against each other.
void find_strange_memories(const Bundle& bundle, const Graph& score, std::vector<std::string>& problems) {
  std::set<std::string_view> inputs, outputs, names;
  for (const Tensor& tensor : score.inputs) inputs.insert(tensor.name);
  for (const Tensor& tensor : score.outputs) outputs.insert(tensor.name);
  std::vector<std::string> strange;
  for (const Memory& entry : bundle.memory) {
    if (const std::string problem = entry.problem(bundle.evaluation.rings); !problem.empty()) {
      problems.push_back("memory " + named(entry.input) + " " + problem);
    }
    if (inputs.count(entry.input) == 0 || outputs.count(entry.output) == 0) strange.push_back(shown(entry.input));
    names.insert(entry.input);
    names.insert(entry.output);
  }
  if (!strange.empty()) {
    problems.push_back("memory that the score graph does not take or return: " + listed(strange));
  }
  if (names.size() < 2 * bundle.memory.size()) problems.push_back("memories share an input or output");
}

}  // namespace

std::string Memory::problem(const NamedList<Ring>& rings) const {
  std::vector<std::string> free, symbols;
  for (std::size_t i = 1; i < shape.size(); ++i) {
    if (shape[i].is_free()) free.push_back(shape[i].name);
  }
  if (shape.empty() || shape[0].name != "batch") return "has no axis 'batch' in front";
  if (layout == MemoryLayout::ring) {
    if (free.size() == 1 && rings.contains(free[0])) return "";
    for (const auto& [symbol, ring] : rings) symbols.push_back(symbol);
    return "is a ring over " + list_of_names(free) + ", expected one of " + list_of_names(symbols);
  }
  if (!free.empty()) {
    return std::string("is a ") + (layout == MemoryLayout::window ? "window" : "state") + " with free axes " +
           list_of_names(free);
  }
  return layout == MemoryLayout::window && shape.size() < 3 ? "is a window without rows" : "";
}

std::vector<std::string> contradictions(const Bundle& bundle) {
  std::vector<std::string> problems;
  const std::string size = std::to_string(bundle.vocab_size);
  if (bundle.vocab_size < 1 || bundle.vocab_size > kLargestAxis) {
    problems.push_back("vocab_size is " + size + ", expected 1 to " + std::to_string(kLargestAxis));
  }
  for (const char* axis : {"batch", "segment"}) {
    if (!bundle.evaluation.rings.contains(axis)) continue;
    problems.push_back("a ring has the symbol " + python_repr(axis) + ", which is another axis");
    break;
  }
  const std::int64_t first = bundle.tokenizer.first_id, last = first + 255;
  if (bundle.tokenizer.kind == "bytes" && last >= bundle.vocab_size) {
    problems.push_back("bytes have ids " + std::to_string(first) + " to " + std::to_string(last) +
                       ", but the vocabulary is 0 to " + std::to_string(bundle.vocab_size - 1));
  }
  for (const auto& [purpose, graph] : bundle.graphs) {
    const Tensor* logits = graph.output("logits");
    if (logits == nullptr || logits->shape.empty() || logits->shape.back().is_free()) continue;
    if (logits->shape.back().size == bundle.vocab_size) continue;
    problems.push_back("vocab_size is " + size + ", but the graphs know " +
                       std::to_string(logits->shape.back().size) + " tokens");
    break;
  }
  const Graph* score = bundle.graphs.find("score");
  if (score == nullptr) {
    problems.push_back("the graph 'score' is missing");
    return problems;
  }
  find_strange_memories(bundle, *score, problems);
  for (const auto& [purpose, graph] : bundle.graphs) {
    find_strange_outputs(purpose, graph, bundle.vocab_size, problems);
  }
  return problems;
}

}  // namespace xlruntime
