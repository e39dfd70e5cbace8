#include "graph_gate.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "error.h"
#include "graph_operators.h"
#include "messages.h"
#include "protobuf.h"
#include "unicode.h"

namespace xlruntime {

namespace {

constexpr const char* kDomain = "ai.xlexport";  // of the functions in a file; all other operators are standard ones
constexpr std::int64_t kMostNodes = 100'000;    // once all functions are expanded
constexpr std::int64_t kSaturated = std::int64_t{1} << 40;
constexpr std::size_t kShort = 64;  // bytes of an attribute that is compared with earlier ones before it is read
constexpr int kDeepest = 16;        // graphs within nodes and functions within functions
constexpr std::size_t kListedProblems = 5;
constexpr const char* kRepair = "Convert the checkpoint again; open untrusted bundles only in a sandbox.";

enum Kind { kModel, kGraph, kNode, kAttribute, kTensor, kSparseTensor, kFunction, kEntry, kTraining, kNothing };
enum Text { kName, kDomainText, kOverload, kKey, kTextValue, kNoText };

// What a field of a message holds: an inner message, a text, or what does not matter here.
struct Meaning {
  Kind message = kNothing;
  Text text = kNoText;
};

struct Row {
  Kind kind;
  std::uint64_t number;
  Meaning meaning;
};

constexpr Row kFields[] = {
    {kModel, 7, {kGraph}},           {kModel, 20, {kTraining}},         {kModel, 25, {kFunction}},
    {kGraph, 1, {kNode}},            {kGraph, 5, {kTensor}},            {kGraph, 15, {kSparseTensor}},
    {kNode, 5, {kAttribute}},        {kNode, 4, {kNothing, kName}},     {kNode, 7, {kNothing, kDomainText}},
    {kNode, 8, {kNothing, kOverload}},
    {kAttribute, 5, {kTensor}},      {kAttribute, 6, {kGraph}},         {kAttribute, 10, {kTensor}},
    {kAttribute, 11, {kGraph}},      {kAttribute, 22, {kSparseTensor}}, {kAttribute, 23, {kSparseTensor}},
    {kTensor, 13, {kEntry}},         {kSparseTensor, 1, {kTensor}},     {kSparseTensor, 2, {kTensor}},
    {kFunction, 7, {kNode}},         {kFunction, 11, {kAttribute}},     {kFunction, 1, {kNothing, kName}},
    {kFunction, 10, {kNothing, kDomainText}}, {kFunction, 13, {kNothing, kOverload}},
    {kEntry, 1, {kNothing, kKey}},   {kEntry, 2, {kNothing, kTextValue}},
};

Meaning meaning(Kind kind, std::uint64_t number) {
  for (const Row& row : kFields) {
    if (row.kind == kind && row.number == number) return row.meaning;
  }
  return {};
}

using Name = std::tuple<std::string, std::string, std::string>;  // domain, name, overload

std::string shown_name(const Name& name) {
  std::vector<std::string> parts;
  for (const std::string& part : {std::get<0>(name), std::get<1>(name), std::get<2>(name)}) {
    if (!part.empty()) parts.push_back(part);
  }
  return named(joined(parts, "."));
}

bool is_operator(std::string_view name) {
  return std::binary_search(std::begin(kOperators), std::end(kOperators), name);
}

// The text with \x12 in place of bytes that are not UTF-8.
std::string decoded(std::string_view raw) {
  static const char* const digits = "0123456789abcdef";
  std::string text;
  while (!raw.empty()) {
    const std::size_t length = utf8_length(raw);
    if (length == 0) {
      const auto byte = static_cast<unsigned char>(raw[0]);
      text += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      text += raw.substr(0, length);
    }
    raw.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return text;
}

// Counts of a function or of the main graph: nodes, and for each called function its calls and their depth.
struct Scope {
  struct Calls {
    std::int64_t number = 0;
    int deepest = 0;
  };
  std::int64_t nodes = 0;
  int depth = 0;
  std::vector<std::pair<Name, Calls>> calls;  // in the order of the first ones
  std::map<Name, std::size_t> place;

  void call(const Name& name, int depth_of_call) {
    const auto [entry, is_new] = place.emplace(name, calls.size());
    if (is_new) calls.emplace_back(name, Calls{});
    Calls& found = calls[entry->second].second;
    ++found.number;
    found.deepest = std::max(found.deepest, depth_of_call);
  }
};

struct ProblemError {
  std::string problem;
};

// One pass over a file, which records its contents.
class Walk {
 public:
  Walk(std::string_view content, const NamedList<FileDigest>& data_files, Budget& budget)
      : content_(content), data_files_(data_files), budget_(budget) {
    scopes_.emplace_back(std::make_unique<Scope>());
    waiting_.push_back({kModel, 0, content.size(), scopes_[0].get(), 0});
    while (!waiting_.empty()) {
      const Message next = waiting_.back();
      waiting_.pop_back();
      read(next);
    }
  }

  std::vector<std::string> problems() {
    std::vector<std::string> found;
    if (!operators_.empty()) {
      std::vector<std::string> names;
      for (const Name& name : operators_) names.push_back(shown_name(name));
      std::sort(names.begin(), names.end());
      found.push_back("it holds operators that xlexport does not write (" + listed(names) + ")");
    }
    found.insert(found.end(), strange_.begin(),
                 strange_.begin() + static_cast<std::ptrdiff_t>(std::min(strange_.size(), kListedProblems)));
    if (!strange_.empty()) return found;
    try {
      std::int64_t nodes = 0;  // also of functions that nothing calls
      for (const auto& [name, scope] : functions_) nodes += scope->nodes;
      if (std::max(nodes, size(*scopes_[0], {}).nodes) > kMostNodes) {
        found.push_back("it has more than " + with_commas(kMostNodes) + " nodes, its functions expanded");
      }
    } catch (const ProblemError& error) {
      found.push_back(error.problem);
    }
    return found;
  }

  const std::set<std::string>& locations() const { return locations_; }

 private:
  // A message that is not yet read, the scope around it, and the number of graphs around it in this scope.
  struct Message {
    Kind kind;
    std::size_t begin, end;
    Scope* scope;
    int depth;
  };

  struct Size {
    std::int64_t nodes;
    int depth;
  };

  void add_problem(const std::string& problem) {
    if (known_problems_.insert(problem).second) strange_.push_back(problem);
  }

  // Read one message; its inner messages wait.
  void read(Message at) {
    if (!enter(at)) return;
    std::array<std::pair<bool, std::string_view>, kNoText> said{};
    bool has_fields = false;
    const std::int64_t count =
        protobuf::each_field(content_, at.begin, at.end, [&](const protobuf::Field& field) {
          const Meaning found = meaning(at.kind, field.number);
          const std::string_view value = content_.substr(field.begin, field.end - field.begin);
          if (found.message != kNothing) {
            has_fields = true;
            if (!is_empty_attribute(found.message, value)) {
              waiting_.push_back({found.message, field.begin, field.end, at.scope, at.depth});
            }
          } else if (found.text != kNoText) {
            has_fields = true;
            said[found.text] = {true, value};
          }
        });
    budget_.charge(0, 1 + count);
    if (at.kind == kAttribute && !has_fields && at.end - at.begin <= kShort) {
      empty_.insert(content_.substr(at.begin, at.end - at.begin));
    }
    const auto text = [&said](Text which) { return decoded(said[which].second); };
    if (at.kind == kNode) {
      ++at.scope->nodes;
      if (said[kDomainText].first || !said[kName].first || !is_operator(said[kName].second)) {
        node({text(kDomainText), text(kName), text(kOverload)}, at);
      }
    } else if (at.kind == kFunction) {
      function({text(kDomainText), text(kName), text(kOverload)}, at.scope);
    } else if (at.kind == kEntry && said[kKey].second == "location") {
      location(text(kTextValue));
    }
  }

  // Whether an attribute equals one that holds no inner messages, as `axis` and the like.
  bool is_empty_attribute(Kind kind, std::string_view value) const {
    return kind == kAttribute && value.size() <= kShort && empty_.count(value) > 0;
  }

  // Move `at` into the scope of a function or graph. Return whether its inside is read.
  bool enter(Message& at) {
    if (at.kind == kTraining) {
      add_problem("it holds a training graph");
      return false;
    }
    if (at.kind == kFunction) {
      at.scope = scopes_.emplace_back(std::make_unique<Scope>()).get();
      at.depth = 0;
    } else if (at.kind == kGraph) {
      at.scope->depth = std::max(at.scope->depth, at.depth + 1);
      if (at.depth == kDeepest) {
        add_problem("graphs within nodes are more than " + std::to_string(kDeepest) + " deep");
      }
      ++at.depth;
    }
    return at.depth <= kDeepest;
  }

  static Name standard(Name name) {
    if (std::get<0>(name) == "ai.onnx") std::get<0>(name).clear();
    return name;
  }

  void node(const Name& written, const Message& at) {
    const Name name = standard(written);
    if (std::get<0>(name) == kDomain) {
      at.scope->call(name, at.depth);
    } else if (!std::get<0>(name).empty() || !is_operator(std::get<1>(name))) {
      operators_.insert(name);
    }
  }

  void function(const Name& written, Scope* scope) {
    const Name name = standard(written);
    if (std::get<0>(name) != kDomain) {
      add_problem("it holds the function " + shown_name(name) + ", expected functions of " + kDomain + " only");
    } else if (functions_.count(name) > 0) {
      add_problem("it holds the function " + shown_name(name) + " twice");
    }
    functions_[name] = scope;
  }

  void location(const std::string& location) {
    locations_.insert(location);
    if (!data_files_.contains(location)) {
      add_problem("its weights lie in " + named(location) + ", which bundle.json does not list");
    }
  }

  // The number of nodes and the depth of a scope after all its calls are expanded.
  Size size(const Scope& scope, const std::vector<Name>& callers) {
    if (callers.size() > kDeepest) {
      throw ProblemError{"functions within functions are more than " + std::to_string(kDeepest) + " deep"};
    }
    Size whole{scope.nodes, scope.depth};
    for (const auto& [name, calls] : scope.calls) {
      const auto called = functions_.find(name);
      if (called == functions_.end()) throw ProblemError{"it calls " + shown_name(name) + ", which it does not hold"};
      if (std::find(callers.begin(), callers.end(), name) != callers.end()) {
        throw ProblemError{"the function " + shown_name(name) + " calls itself"};
      }
      auto known = sizes_.find(name);
      if (known == sizes_.end()) {
        std::vector<Name> inner = callers;
        inner.push_back(name);
        const Size found = size(*called->second, inner);
        known = sizes_.emplace(name, found).first;
      }
      const std::int64_t most = (kSaturated - whole.nodes) / calls.number;  // without overflow
      whole.nodes = known->second.nodes > most ? kSaturated : whole.nodes + calls.number * known->second.nodes;
      whole.depth = std::max(whole.depth, calls.deepest + 1 + known->second.depth);
    }
    if (whole.depth > kDeepest) {
      throw ProblemError{"graphs and functions within each other are more than " + std::to_string(kDeepest) + " deep"};
    }
    return whole;
  }

  std::string_view content_;
  const NamedList<FileDigest>& data_files_;
  Budget& budget_;
  std::vector<std::unique_ptr<Scope>> scopes_;  // the main graph's, then those of functions
  std::map<Name, Scope*> functions_;
  std::set<Name> operators_;
  std::set<std::string> locations_, known_problems_;
  std::vector<std::string> strange_;  // problems, each once, in order
  std::map<Name, Size> sizes_;
  std::unordered_set<std::string_view> empty_;
  std::vector<Message> waiting_;
};

}  // namespace

std::string read_graph(const std::filesystem::path& path, const NamedList<FileDigest>& data_files, Limits limits) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) {
    throw Error(ErrorCode::bundle, path.string() + ": no such file.", "Copy the bundle again.");
  }
  Budget budget(limits, path.string(), ErrorCode::bundle);
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, failed));
  if (!failed && size > limits.bytes) budget.charge(size);
  std::string content = read_at_most(path, budget);
  const auto folder_of = [](const std::filesystem::path& file) {
    std::error_code unknown;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(file), unknown).parent_path();
  };
  // The folder as the system knows it. The graph itself may be a link, its data may not lead elsewhere.
  const std::filesystem::path folder = folder_of(path.parent_path() / "-");
  for (const std::string& name : check_graph(content, path.string(), data_files, limits)) {
    const std::filesystem::path data = path.parent_path() / name;
    if (folder.empty() || folder_of(data) != folder) {
      throw Error(ErrorCode::bundle, data.string() + ": a link that leads out of the folder.",
                  "Copy the bundle with its files.");
    }
  }
  return content;
}

std::set<std::string> check_graph(std::string_view content, const std::string& file,
                                  const NamedList<FileDigest>& data_files, Limits limits) {
  Budget budget(limits, file, ErrorCode::bundle);
  try {
    Walk walk(content, data_files, budget);
    if (const auto problems = walk.problems(); !problems.empty()) {
      throw Error(ErrorCode::bundle, file + ": " + joined(problems, "; ") + ".", kRepair);
    }
    return walk.locations();
  } catch (const protobuf::WireError& error) {
    throw Error(ErrorCode::bundle, file + ": not an ONNX graph (" + error.problem + ").", "Copy the bundle again.");
  }
}

}  // namespace xlruntime
