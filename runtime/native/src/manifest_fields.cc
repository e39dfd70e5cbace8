// The fields of bundle.json, object by object.
#include <algorithm>
#include <set>

#include "manifest_read.h"
#include "messages.h"

namespace xlruntime {

namespace {

constexpr const char* kTypes[] = {"float16", "float32", "float64", "bool",   "int8",   "int16",
                                  "int32",   "int64",   "uint8",   "uint16", "uint32", "uint64"};
constexpr std::int64_t kLargestFile = std::int64_t{1} << 62;

using Where = const std::string&;

class ManifestReader : FieldReader {
 public:
  explicit ManifestReader(Problems& problems) : FieldReader(problems) {}

  void read(const json::Value& value, Bundle& bundle) {
    std::int64_t version = 0;
    object(value, "",
           {text("architecture", bundle.architecture), any_object("config", bundle.config),
            integer("vocab_size", bundle.vocab_size),
            {"tokenizer", true, [&](const json::Value& v, Where w) { read(v, w, bundle.tokenizer); }},
            text("precision", bundle.precision),
            {"evaluation", true, [&](const json::Value& v, Where w) { read(v, w, bundle.evaluation); }},
            {"memory", true, [&](const json::Value& v, Where w) { read_list(v, w, bundle.memory); }},
            {"graphs", true, [&](const json::Value& v, Where w) { read_map(v, w, bundle.graphs); }},
            any_object("provenance", bundle.provenance),
            {"files", true, [&](const json::Value& v, Where w) { read_map(v, w, bundle.files); }},
            integer("format_version", version, false)});
  }

 private:
  template <class T>
  void read_list(const json::Value& value, Where where, std::vector<T>& into) {
    each_item(value, where, [&](const json::Value& part, Where place) { read(part, place, into.emplace_back()); });
  }

  template <class T>
  void read_map(const json::Value& value, Where where, NamedList<T>& into) {
    each_member(value, where, [&](const std::string& name, const json::Value& part, Where place) {
      T entry;
      read(part, place, entry);
      into.add(name, std::move(entry));
    });
  }

  // One axis; an empty name and the size 0 are refused later, with the whole shape.
  void read(const json::Value& value, Where where, Axis& axis) {
    if (const auto* name = value.as<std::string>()) {
      axis.name = *name;
    } else if (value.is_integer()) {
      axis.size = clamped(value);
    } else {
      refuse(value, where, "a whole number or text");
    }
  }

  Field shape(std::vector<Axis>& into, const json::Value*& given) {
    return {"shape", true, [&](const json::Value& v, Where w) {
              given = &v;
              read_list(v, w, into);
            }};
  }

  // Refuse a type or shape that no array can have.
  void check_kind(const std::string& name, const std::string& dtype, const json::Value& shape) {
    if (std::find(std::begin(kTypes), std::end(kTypes), dtype) == std::end(kTypes)) {
      return refuse("the dtype of " + named(name) + " is " + shown(dtype) + ", expected one of " +
                    joined({std::begin(kTypes), std::end(kTypes)}, ", "));
    }
    for (const json::Value& axis : *shape.as<json::Array>()) {
      const auto* free = axis.as<std::string>();
      if (free != nullptr ? !free->empty() : clamped(axis) >= 1 && clamped(axis) <= kLargestAxis) continue;
      return refuse("an axis of " + named(name) + " is " + shown_value(axis) + ", expected a name or 1 to " +
                    std::to_string(kLargestAxis));
    }
  }

  void read(const json::Value& value, Where where, Tensor& tensor) {
    const json::Value* given = nullptr;
    const bool good = object(value, where,
                             {text("name", tensor.name), text("dtype", tensor.dtype), shape(tensor.shape, given)});
    if (good) check_kind(tensor.name, tensor.dtype, *given);
  }

  void read(const json::Value& value, Where where, Memory& entry) {
    const json::Value* given = nullptr;
    std::size_t layout = 0;
    const bool good = object(value, where,
                             {text("input", entry.input), text("output", entry.output), text("dtype", entry.dtype),
                              shape(entry.shape, given), optional_text("first_value", entry.first_value, false),
                              choice("layout", layout, {"ring", "window", "state"}, false)});
    entry.layout = static_cast<MemoryLayout>(layout);
    if (good) check_kind(entry.input, entry.dtype, *given);
  }

  void read(const json::Value& value, Where where, Graph& graph) {
    std::size_t format = 0;
    const bool good =
        object(value, where,
               {text("file", graph.file),
                {"inputs", true, [&](const json::Value& v, Where w) { read_list(v, w, graph.inputs); }},
                {"outputs", true, [&](const json::Value& v, Where w) { read_list(v, w, graph.outputs); }},
                optional_integer("max_segment", graph.max_segment, false),
                choice("format", format, {"onnx", "torchscript", "exported-program"}, false)});
    graph.format = static_cast<GraphFormat>(format);
    if (!good) return;
    if (graph.max_segment && *graph.max_segment < 1) {
      return refuse("max_segment is " + std::to_string(*graph.max_segment) +
                    ", expected a whole number of at least 1");
    }
    for (const auto& [what, tensors] : {std::pair("inputs", &graph.inputs), std::pair("outputs", &graph.outputs)}) {
      std::set<std::string_view> names;
      for (const Tensor& tensor : *tensors) names.insert(tensor.name);
      if (names.size() < tensors->size()) {
        return refuse(std::string(what) + " of " + named(graph.file) + " have the same name");
      }
    }
  }

  void read(const json::Value& value, Where where, TokenizerEntry& tokenizer) {
    static const std::vector<const char*> kinds{"bytes", "vocabulary", "tokenizers", "sentencepiece", "none"};
    std::size_t kind = 0;
    const bool good = object(value, where,
                             {choice("kind", kind, kinds, true), optional_text("file", tokenizer.file, false),
                              integer("first_id", tokenizer.first_id, false)});
    tokenizer.kind = kinds[kind];
    if (!good) return;
    const bool has_no_file = tokenizer.kind == "bytes" || tokenizer.kind == "none";
    if (tokenizer.first_id < 0) {
      refuse("first_id is " + std::to_string(tokenizer.first_id) + ", expected a whole number of at least 0");
    } else if (tokenizer.file.has_value() == has_no_file) {
      refuse("tokenizer " + python_repr(tokenizer.kind) + " with file " +
             (tokenizer.file ? named(*tokenizer.file) : "None") + ": only bytes and none have no file");
    } else if (tokenizer.file && tokenizer.file->empty()) {
      refuse("the tokenizer's file has no name");
    }
  }

  void read(const json::Value& value, Where where, FileDigest& digest) {
    json::Value size;
    const Field size_field{"size", true, [&](const json::Value& v, Where w) {
                             if (!v.is_integer()) return refuse(v, w, "a whole number");
                             size = v;
                             digest.size = clamped(v);
                           }};
    if (!object(value, where, {text("sha256", digest.sha256), size_field})) return;
    const bool is_digest =
        digest.sha256.size() == 64 && digest.sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (is_digest && digest.size >= 0 && digest.size <= kLargestFile) return;
    refuse(python_ascii(digest.sha256).substr(0, 70) + " and " + shown_value(size) +
           " bytes, expected a SHA-256 and a size");
  }

  void read(const json::Value& value, Where where, Setting& setting) {
    std::size_t type = 0;
    const Field default_field{"default", true, [&](const json::Value& v, Where w) {
                                if (const auto* flag = v.as<bool>()) {
                                  setting.default_value = SettingValue::boolean(*flag);
                                } else if (v.is_integer()) {
                                  setting.default_value = SettingValue::integer(clamped(v));
                                } else {
                                  refuse(v, w, "a whole number or true or false");
                                }
                              }};
    const bool good = object(
        value, where,
        {choice("type", type, {"integer", "boolean"}, true), default_field, text("meaning", setting.meaning),
         optional_text("input", setting.input, false), optional_integer("minimum", setting.minimum, false),
         optional_integer("maximum", setting.maximum, false), optional_integer("off", setting.off, false)});
    setting.type = static_cast<Setting::Type>(type);
    if (!good) return;
    if (const std::string problem = setting.problem(setting.default_value); !problem.empty()) {
      return refuse("its default " + problem);
    }
    for (const auto& end : {setting.minimum, setting.maximum, setting.off}) {
      if (std::abs(end.value_or(0)) > kLargestLength) {
        return refuse("its range reaches beyond " + std::to_string(kLargestLength));
      }
    }
  }

  void read(const json::Value& value, Where where, Ring& ring) {
    const bool good =
        object(value, where,
               {text("rows", ring.rows), optional_text("same_length", ring.same_length, false),
                integer("window_extra", ring.window_extra, false), default_text("offset", ring.offset),
                optional_text("length", ring.length, false), optional_text("window", ring.window, false)});
    if (good && ring.window_extra != 0 && ring.window_extra != 1) {
      refuse("window_extra is " + std::to_string(ring.window_extra) + ", expected 0 or 1");
    }
  }

  Field default_text(const char* name, std::string& into) {
    Field field = text(name, into);
    field.needed = false;
    return field;
  }

  void read(const json::Value& value, Where where, EvaluationRules& rules) {
    std::size_t first_memory = 0;
    const bool good =
        object(value, where,
               {integer("segment_len", rules.segment_len),
                {"settings", false, [&](const json::Value& v, Where w) { read_map(v, w, rules.settings); }},
                {"rings", false, [&](const json::Value& v, Where w) { read_map(v, w, rules.rings); }},
                choice("first_memory", first_memory, {"empty", "zeros"}, false),
                optional_integer("max_positions", rules.max_positions, false), boolean("restart", rules.restart),
                boolean("whole", rules.whole), boolean("reads_last", rules.reads_last)});
    rules.first_memory = static_cast<FirstMemory>(first_memory);
    if (!good) return;
    if (const std::string problem = rules.problem(); !problem.empty()) refuse(problem);
  }
};

}  // namespace

void read_manifest_fields(const json::Value& fields, Bundle& bundle, Problems& problems) {
  ManifestReader(problems).read(fields, bundle);
}

}  // namespace xlruntime
