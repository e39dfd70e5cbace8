// A program for tests: it reads a command a line, as JSON, and answers with a line. tests/native drives it.
//
// Texts that may hold any bytes are in hexadecimal.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "../src/bundle_files.h"
#include "../src/error.h"
#include "../src/evaluation.h"
#include "../src/graph_gate.h"
#include "../src/json.h"
#include "../src/manifest.h"
#include "../src/messages.h"
#include "../src/output_check.h"
#include "../src/sha256.h"
#include "../src/state_file.h"
#include "../src/stream_state.h"
#include "../src/tokenizers/tokenizer.h"
#include "../src/unicode.h"

namespace {

using namespace xlruntime;
using json::Array;
using json::Object;
using json::Value;

const Value& field(const Object& command, const char* name) {
  const Value* found = command.find(name);
  if (found == nullptr) throw std::runtime_error(std::string("the command has no ") + name);
  return *found;
}

const std::string& text(const Object& command, const char* name) { return *field(command, name).as<std::string>(); }

std::int64_t number(const Object& command, const char* name) { return *field(command, name).as<std::int64_t>(); }

std::string from_hex(const std::string& digits) {
  std::string raw;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    raw += static_cast<char>(static_cast<unsigned char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return raw;
}

std::string to_hex(std::string_view raw) {
  static const char* const digits = "0123456789abcdef";
  std::string out;
  for (const char mark : raw) {
    out += digits[static_cast<unsigned char>(mark) >> 4];
    out += digits[static_cast<unsigned char>(mark) & 15];
  }
  return out;
}

Array numbers(const std::vector<std::int64_t>& values) { return Array(values.begin(), values.end()); }

std::vector<std::int64_t> integers(const Value& value) {
  std::vector<std::int64_t> found;
  for (const Value& one : *value.as<Array>()) found.push_back(*one.as<std::int64_t>());
  return found;
}

Object made(std::vector<json::Member> members) {
  Object object;
  object.members = std::move(members);
  return object;
}

Value optional_number(const std::optional<std::int64_t>& value) { return value ? Value(*value) : Value(); }

Value describe(const Bundle& bundle) {
  Object metadata, tokenizer;
  Array guarded;
  for (const auto& [purpose, graph] : bundle.graphs) metadata.add(purpose, graph.metadata(bundle.memory));
  for (const auto& [name, digest] : bundle.guarded_files()) guarded.push_back(name);
  return made({{"fingerprint", bundle.fingerprint()},
               {"metadata", metadata},
               {"guarded", guarded},
               {"settings", bundle.evaluation.choose().to_json()}});
}

Value describe(const EvaluationSettings& evaluation) {
  Object rings, inputs;
  for (const auto& [symbol, ring] : evaluation.rules().rings) {
    rings.add(symbol, numbers({evaluation.rows(symbol), evaluation.window(symbol),
                               evaluation.slots(symbol, evaluation.capacity() + 3)}));
  }
  for (const auto& [name, value] : evaluation.inputs()) inputs.add(name, value);
  return made({{"settings", evaluation.to_json()},
               {"rings", rings},
               {"inputs", inputs},
               {"capacity", evaluation.capacity()},
               {"most_rows", evaluation.most_rows()},
               {"widest_window", evaluation.widest_window()},
               {"max_segment", evaluation.max_segment(evaluation.capacity() + 3)},
               {"segmentation_matters", evaluation.segmentation_matters()},
               {"longest_part", optional_number(evaluation.longest_part())},
               {"longest_document", optional_number(evaluation.longest_document())}});
}

EvaluationChoice choice_of(const Object& given) {
  EvaluationChoice choice;
  for (const auto& [name, value] : given) {
    const auto* flag = value.as<bool>();
    if (name == "segment_len") {
      choice.segment_len = *value.as<std::int64_t>();
    } else if (name == "restart") {
      choice.restart = *flag;
    } else {
      choice.values.add(name, flag != nullptr ? SettingValue::boolean(*flag)
                                              : SettingValue::integer(*value.as<std::int64_t>()));
    }
  }
  return choice;
}

NamedList<FileDigest> listed_files(const Value& names) {
  NamedList<FileDigest> files;
  for (const Value& name : *names.as<Array>()) files.add(*name.as<std::string>(), {});
  return files;
}

Value describe(const NamedList<HeldTensor>& tensors) {
  Object found;
  for (const auto& [name, tensor] : tensors) {
    found.add(name, made({{"dtype", tensor.dtype},
                          {"shape", numbers(tensor.shape)},
                          {"sha256", sha256(tensor.data)},
                          {"finite", tensor.is_finite()}}));
  }
  return found;
}

std::vector<TensorView> views(const NamedList<HeldTensor>& tensors) {
  std::vector<TensorView> found;
  for (const auto& [name, tensor] : tensors) found.push_back({name, tensor.dtype, tensor.shape, tensor.data.data()});
  return found;
}

Limits limits_of(const Object& command) {
  const Value* given = command.find("limits");
  if (given == nullptr) return {};
  const auto pair = integers(*given);
  return {pair[0], pair[1]};
}

Value describe(const TokenPiece& piece, const TextCounts& counts) {
  return made({{"ids", numbers(piece.ids)},
               {"starts", numbers(piece.starts)},
               {"ends", numbers(piece.ends)},
               {"counts", numbers({counts.bytes, counts.chars, counts.words, counts.first_token_bytes,
                                   counts.first_token_chars, counts.dropped_bytes, counts.dropped_chars})}});
}

// Tokenizers stay open between commands: large vocabularies take long to read.
const Tokenizer& tokenizer_of(const Object& command) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> open;
  const Object& entry = *field(command, "tokenizer").as<Object>();
  auto& found = open[json::dump(entry) + text(command, "folder")];
  if (!found) {
    TokenizerEntry given{text(entry, "kind"), std::nullopt, 0};
    if (const auto* file = field(entry, "file").as<std::string>()) given.file = *file;
    if (const Value* first = entry.find("first_id")) given.first_id = *first->as<std::int64_t>();
    found = make_tokenizer(given, text(command, "folder"));
  }
  return *found;
}

Value read_document(const Object& command) {
  const auto reader = tokenizer_of(command).read("the text");
  TokenPiece whole;
  for (const Value& part : *field(command, "pieces").as<Array>()) {
    whole.append(reader->take(from_hex(*part.as<std::string>())));
  }
  whole.append(reader->end());
  return describe(whole, reader->counts);
}

// Each code point from `first` on as a digit: 1 if it is printable, plus 2 if it is white space.
Value classes(const Object& command) {
  std::string found;
  for (std::int64_t code = number(command, "first"); code < number(command, "end"); ++code) {
    const auto mark = static_cast<char32_t>(code);
    found += static_cast<char>('0' + (is_printable(mark) ? 1 : 0) + (is_space(mark) ? 2 : 0));
  }
  return found;
}

Value texts_of(const Object& command) {
  const std::string raw = from_hex(text(command, "text"));
  return made({{"lower", to_hex(lower(raw))},
               {"repr", to_hex(python_repr(raw))},
               {"ascii", to_hex(python_ascii(raw))},
               {"named", to_hex(named(raw))},
               {"one_line", to_hex(one_line(raw))}});
}

Value parsed(const Object& command) {
  Budget budget(limits_of(command), "it", ErrorCode::bundle);
  const Value value = json::parse(from_hex(text(command, "text")), budget);
  return made({{"given", json::dump(value)},
               {"sorted", json::dump(value, json::Order::sorted)},
               {"compact", json::dump(value, json::Order::as_given, json::Layout::compact)},
               {"shown", to_hex(shown_value(value))}});
}

Value answer(const Object& command) {
  const std::string& what = text(command, "do");
  if (what == "json") return parsed(command);
  if (what == "sha256") {  // in parts, with the processor's instructions and without
    const std::string raw = from_hex(text(command, "text"));
    const auto middle = static_cast<std::size_t>(number(command, "middle"));
    Array found;
    for (const bool portable : {false, true}) {
      Sha256 sum(portable);
      sum.update(std::string_view(raw).substr(0, middle));
      sum.update(std::string_view(raw).substr(middle));
      found.push_back(sum.hexadecimal());
    }
    return found;
  }
  if (what == "digest") return digest_file(text(command, "path")).sha256;
  if (what == "classes") return classes(command);
  if (what == "texts") return texts_of(command);
  if (what == "replace") return to_hex(replace_wrong_bytes(from_hex(text(command, "text"))));
  if (what == "manifest") return describe(Bundle::from_json(from_hex(text(command, "text")), text(command, "where")));
  if (what == "bundle") {
    const Bundle bundle = read_manifest(text(command, "folder"));
    BundleFiles files(text(command, "folder"), bundle);
    check_digests(text(command, "folder"), bundle.guarded_files());
    files.require();
    return describe(bundle);
  }
  if (what == "replaced") {  // the files are replaced between two commands
    static std::map<std::string, std::unique_ptr<BundleFiles>> open;
    auto& files = open[text(command, "folder")];
    if (!files) files = std::make_unique<BundleFiles>(text(command, "folder"), read_manifest(text(command, "folder")));
    files->require();
    return nullptr;
  }
  if (what == "choose") {
    const Bundle bundle = read_manifest(text(command, "folder"));
    return describe(bundle.evaluation.choose(choice_of(*field(command, "settings").as<Object>())));
  }
  if (what == "graph" || what == "graph_file") {
    const auto files = listed_files(field(command, "data_files"));
    const Limits limits = command.find("limits") != nullptr ? limits_of(command) : kGraphLimits;
    if (what == "graph_file") return sha256(read_graph(text(command, "path"), files, limits));
    Array found;
    const auto names = check_graph(from_hex(text(command, "text")), "score.onnx", files, limits);
    for (const std::string& name : names) found.push_back(name);
    return found;
  }
  if (what == "state") {
    const State state = read_state(text(command, "path"), text(command, "kind"), number(command, "version"),
                                   "Save it again.", limits_of(command));
    if (const Value* to = command.find("to")) {
      write_state(*to->as<std::string>(), text(command, "kind"), number(command, "version"), state.fields,
                  views(state.tensors));
    }
    return made({{"fields", state.fields}, {"tensors", describe(state.tensors)}});
  }
  if (what == "stream") {
    const Bundle bundle = read_manifest(text(command, "folder"));
    const ReadStream stream = read_stream(text(command, "path"), bundle, text(command, "folder"));
    if (const Value* to = command.find("to")) {
      std::vector<TensorView> tensors;
      for (const Memory& entry : bundle.memory) {
        const HeldTensor& tensor = *stream.tensors.find(entry.input);
        tensors.push_back({entry.input, tensor.dtype, tensor.shape, tensor.data.data()});
      }
      write_stream(*to->as<std::string>(), stream.saved, tensors);
    }
    return describe(stream.evaluation);
  }
  if (what == "first_values") {
    return describe(read_first_values(text(command, "folder"), read_manifest(text(command, "folder"))));
  }
  if (what == "read") return read_document(command);
  if (what == "encode_piece") {
    std::optional<std::int64_t> previous;
    if (const auto* given = field(command, "previous").as<std::int64_t>()) previous = *given;
    return numbers(tokenizer_of(command).encode_piece(from_hex(text(command, "text")), previous));
  }
  if (what == "decode") return to_hex(tokenizer_of(command).decode(integers(field(command, "ids"))));
  if (what == "kind") {
    Tensor tensor{"it", text(command, "dtype"), {}};
    for (const Value& axis : *field(command, "axes").as<Array>()) {
      const auto* name = axis.as<std::string>();
      tensor.shape.push_back(name != nullptr ? Axis{*name, 0} : Axis{"", *axis.as<std::int64_t>()});
    }
    require_kind("it.onnx", tensor, text(command, "found"), integers(field(command, "shape")),
                 number(command, "batch"), number(command, "segment"));
    return nullptr;
  }
  if (what == "range") {
    const std::string data = from_hex(text(command, "data"));
    require_range("it.onnx", text(command, "name"), text(command, "dtype"), data.data(),
                  data.size() / item_size(text(command, "dtype")), number(command, "vocab_size"));
    return nullptr;
  }
  throw std::runtime_error("no command " + what);
}

constexpr const char* kClasses[] = {"BundleError", "BundleNotFoundError", "ProviderError", "StateError",
                                    "TokenError",  "TextError",           "VocabularyError", "OptionError",
                                    "ArgumentError", "XlruntimeError",    "OSError"};

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Budget budget({std::int64_t{1} << 40, std::int64_t{1} << 40}, "the command", ErrorCode::runtime);
    Object reply;
    try {
      reply.add("result", answer(*json::parse(line, budget).as<Object>()));
    } catch (const Error& error) {
      reply.add("error", kClasses[static_cast<std::size_t>(error.code)]);
      reply.add("message", error.message);
      reply.add("repair", error.repair);
    }
    std::cout << json::dump(reply) << std::endl;
  }
}
