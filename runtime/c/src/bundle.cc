#include "bundle.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "json.h"
#include "manifest_fields.h"
#include "safetensors.h"
#include "sha256.h"

namespace xlruntime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "bundle.json";
constexpr const char* kDigest = "bundle.json.sha256";
constexpr std::int64_t kFormat = 5;
constexpr std::uintmax_t kLargestManifest = std::uintmax_t{1} << 26;
constexpr std::int64_t kLargestAxis = (std::int64_t{1} << 31) - 1;
constexpr std::size_t kLongestName = 255;  // bytes of the name of a file
constexpr const char* kRewrite = "Rewrite it: xlexport configure OLD -o NEW";
constexpr const char* kCopyAgain = "Copy the bundle again, or convert the checkpoint again.";

template <class Items>
std::optional<std::size_t> index_of(const Items& items, std::string_view name,
                                    std::string Items::value_type::*field = &Items::value_type::name) {
  const auto place = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.*field == name; });
  if (place == items.end()) return std::nullopt;
  return static_cast<std::size_t>(place - items.begin());
}

// Whether a name stays inside a folder, and a message can show it.
bool is_file_name(const std::string& name) {
  const auto is_control = [](char mark) { return static_cast<unsigned char>(mark) < 0x20 || mark == 0x7f; };
  return !name.empty() && name != "." && name != ".." && name.size() <= kLongestName &&
         name.find_first_of("/\\:") == std::string::npos && std::none_of(name.begin(), name.end(), is_control);
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Whether a text is one to four numbers of at most four digits, with points between them.
bool is_version(const std::string& text) {
  int numbers = 0, digits = 0;
  for (const char mark : text + ".") {
    if (mark >= '0' && mark <= '9' && ++digits <= 4) continue;
    if (mark != '.' || digits < 1 || digits > 4 || ++numbers > 4) return false;
    digits = 0;
  }
  return true;
}

// Reads types, ranges and names of parts; Python's reader also names contradictions (docs/bundle_format.md). Reads the
// parts in an order in which each can name those before it.
class Reader {
 public:
  Reader(Bundle& bundle, const json::Value& value, const std::string& where) : bundle_(bundle), top_(value, where) {}

  void read() {
    const json::Value* found = top_.all().find("format");
    const auto* format = found == nullptr ? nullptr : found->as<std::int64_t>();
    if (format == nullptr || *format != kFormat) {
      throw Error(XLR_ERROR_BUNDLE_FORMAT,
                  top_.where() + ": not of bundle format " + std::to_string(kFormat) + ", which this runtime reads.",
                  format != nullptr && *format == kFormat - 1 ? kRewrite : kConvertAgain);
    }
    top_.value("format");
    read_requirements(top_.object("requires"));
    read_model(top_.object("model"));
    read_tokenizer(top_.object("tokenizer"));
    read_document(top_.object("document"));
    for_each("settings", [this](const std::string& name, Fields fields) { read_setting(name, fields); });
    for_each("rings", [this](const std::string& name, Fields fields) { read_ring(name, fields); });
    for (const json::Value& each : top_.list("memory")) read_memory(Fields(each, top_.place("memory")));
    for_each("files", [this](const std::string& name, Fields fields) { read_file(name, fields); });
    read_graphs();
    read_steps();
    check_purposes();
    const Fields meaning = top_.object("meaning");
    for (const auto& [name, text] : meaning.all()) {
      if (text.as<std::string>() == nullptr) throw meaning.error(shown(name) + " is not a text");
    }
    top_.object("provenance");
    bundle_.fingerprint = top_.text("fingerprint");
    if (!is_sha256(bundle_.fingerprint)) throw top_.error("the fingerprint is not a SHA-256");
    top_.end();
    check_files();
  }

 private:
  template <class Read>
  void for_each(const char* name, const Read& read) {
    const Fields part = top_.object(name);
    for (const auto& [key, value] : part.all()) {
      Fields fields(value, part.place(key));
      read(key, fields);
    }
  }

  void read_requirements(Fields fields) {
    const auto version = fields.text_or_null("onnxruntime");
    if (version && !is_version(*version)) throw fields.error("'onnxruntime' is not a version such as 1.24.1");
    bundle_.onnxruntime = version.value_or("");
    fields.integer_or_null("opset", 1, kLargestAxis);
    const Fields domains = fields.object("domains");
    for (const auto& [name, newest] : domains.all()) {
      const auto* number = newest.as<std::int64_t>();
      if (number == nullptr) throw domains.error("the version of " + shown(name) + " is not a whole number");
      if (name != "ai.xlexport" || *number != 1) {
        throw domains.error("needs operators of " + shown(name) + " " + std::to_string(*number) +
                            ", which this runtime lacks");
      }
    }
    fields.end();
  }

  void read_model(Fields fields) {
    bundle_.architecture = fields.text("architecture");
    bundle_.precision = fields.text("precision");
    bundle_.vocab_size = fields.integer("vocab_size", 0, kLargestAxis);
    fields.object("config");
    fields.end();
  }

  void read_tokenizer(Fields fields) {
    static constexpr const char* kKinds[] = {"bytes", "vocabulary", "tokenizers", "sentencepiece", "none"};
    Tokenization& tokenizer = bundle_.tokenizer;
    tokenizer.kind = kKinds[fields.choice("kind", kKinds)];
    tokenizer.file = fields.text_or_null("file");
    tokenizer.first_id = fields.integer("first_id", 0, kLargestAxis);
    read_text_rules(fields);
    fields.end();
  }

  // What later versions of the format know of a tokenizer; absent fields are null, false or empty.
  void read_text_rules(Fields& fields) {
    static constexpr const char* kRules[] = {"gpt2", "llama3", "gpt4o", "words", "letters"};
    Tokenization& tokenizer = bundle_.tokenizer;
    if (fields.has("settled")) fields.choice("settled", kRules);
    if (fields.has("size")) tokenizer.size = fields.integer("size", 1, kLargestAxis);
    if (fields.has("bpe")) tokenizer.bpe = fields.text("bpe");
    if (fields.has("begin")) tokenizer.begin = read_text_token(fields.object("begin"));
    tokenizer.adds_begin = fields.has("adds_begin") && fields.boolean("adds_begin");
    if (!fields.has("ends")) return;
    for (const json::Value& each : fields.list("ends")) {
      tokenizer.ends.push_back(read_text_token(Fields(each, fields.place("ends"))));
    }
  }

  std::int64_t read_text_token(Fields fields) {
    const std::int64_t id = fields.integer("id", 0, bundle_.vocab_size - 1);
    fields.text("name");
    fields.text("source");
    fields.end();
    return id;
  }

  void read_document(Fields fields) {
    static constexpr const char* kFresh[] = {"empty", "zeros"};
    DocumentRules& document = bundle_.document;
    document.segment_len = fields.integer("segment_len", 1, kLargestLength);
    document.max_positions = fields.integer_or_null("max_positions", 1, kLargestLength);
    document.restart = fields.boolean("restart");
    document.full_document = fields.boolean("full_document");
    document.bidirectional = fields.boolean("bidirectional");
    document.begins_with_zeros = fields.choice("fresh_memory", kFresh) == 1;
    const bool has_encoder = !fields.value("encoder").is_null();
    fields.end();
    if (has_encoder) {
      throw Error(XLR_ERROR_BUNDLE_FORMAT, fields.where() + ": an encoder-decoder, which this runtime does not run.",
                  "Run it with the Python package: xlruntime.load_translator.");
    }
  }

  void read_setting(const std::string& name, Fields& fields) {
    Setting setting;
    setting.name = name;
    setting.meaning = fields.text("meaning");
    setting.is_boolean = fields.value("value").as<bool>() != nullptr;
    setting.value = setting.is_boolean ? fields.boolean("value") : fields.integer("value", -kLargestLength, kLargestLength);
    const auto minimum = fields.integer_or_null("minimum", -kLargestLength, kLargestLength);
    const auto maximum = fields.integer_or_null("maximum", -kLargestLength, kLargestLength);
    setting.off = fields.integer_or_null("off", -kLargestLength, kLargestLength);
    fields.end();
    setting.minimum = setting.is_boolean ? 0 : minimum.value_or(-kLargestLength);
    setting.maximum = setting.is_boolean ? 1 : maximum.value_or(kLargestLength);
    bundle_.settings.push_back(std::move(setting));
  }

  void read_ring(const std::string& symbol, Fields& fields) {
    Ring ring{symbol, read_sum(fields, "rows"), read_sum(fields, "slots"), std::nullopt, std::nullopt};
    if (!fields.value("window").is_null()) ring.window = read_sum(fields, "window");
    if (const auto condition = fields.text_or_null("window_if")) {
      ring.window_if = index_of(bundle_.settings, *condition);
      if (!ring.window_if || !bundle_.settings[*ring.window_if].is_boolean) {
        throw fields.error("window_if is not a boolean setting");
      }
    }
    fields.end();
    bundle_.rings.push_back(std::move(ring));
  }

  Sum read_sum(Fields& fields, const char* name) {
    const json::Array& list = fields.list(name);
    std::int64_t numbers[3] = {};
    for (std::size_t i = 0; i < list.size() && list.size() == 3; ++i) {
      const auto* number = list[i].as<std::int64_t>();
      if (number == nullptr || *number < -kLargestLength || *number > kLargestLength) break;
      numbers[i] = *number;
      if (i == 2) return {numbers[0], numbers[1], numbers[2]};
    }
    throw fields.error(std::string("'") + name + "' is not three whole numbers");
  }

  std::vector<Axis> read_shape(Fields& fields) {
    std::vector<Axis> shape;
    for (const json::Value& each : fields.list("shape")) {
      const auto* name = each.as<std::string>();
      const auto* size = each.as<std::int64_t>();
      const bool is_axis = name != nullptr ? !name->empty() : size != nullptr && *size >= 1 && *size <= kLargestAxis;
      if (!is_axis) throw fields.error("an axis is neither a name nor 1 to " + std::to_string(kLargestAxis));
      shape.push_back(name != nullptr ? Axis{*name, 0} : Axis{"", *size});
    }
    return shape;
  }

  const std::string& read_type(Fields& fields) {
    const std::string& dtype = fields.text("dtype");
    if (item_size(dtype) == 0) throw fields.error("the dtype " + shown(dtype) + " is unknown");
    return dtype;
  }

  void read_memory(Fields fields) {
    static constexpr const char* kLayouts[] = {"ring", "window", "state"};
    MemoryEntry entry;
    entry.input = fields.text("input");
    entry.output = fields.text("output");
    entry.dtype = read_type(fields);
    entry.shape = read_shape(fields);
    entry.layout = static_cast<Layout>(fields.choice("layout", kLayouts));
    entry.first_value = fields.text_or_null("first_value");
    fields.end();
    if (entry.shape.empty() || entry.shape[0].name != "batch") throw fields.error("its first axis is not batch");
    std::size_t free = 0;
    for (std::size_t i = 1; i < entry.shape.size(); ++i) {
      if (entry.shape[i].name.empty()) continue;
      const auto ring = index_of(bundle_.rings, entry.shape[i].name, &Ring::symbol);
      if (!ring) throw fields.error("the axis " + shown(entry.shape[i].name) + " is not a symbol of rings");
      entry.ring = *ring;
      entry.row_axis = i;
      ++free;
    }
    if (entry.layout == Layout::window) entry.row_axis = entry.shape.size() - 2;
    if (free != (entry.layout == Layout::ring ? 1u : 0u)) throw fields.error("free axes that its layout does not have");
    if (entry.layout == Layout::window && entry.shape.size() < 3) throw fields.error("a window without rows");
    bundle_.memory.push_back(std::move(entry));
  }

  void read_file(const std::string& name, Fields& fields) {
    FileEntry entry;
    entry.sha256 = fields.text("sha256");
    entry.size = fields.integer("size", 0, kLargestSize);
    fields.end();
    if (!is_file_name(name)) throw fields.error("the name of a file must stay inside the folder");
    if (!is_sha256(entry.sha256)) throw fields.error("its sha256 is not a SHA-256");
    bundle_.files.emplace(name, std::move(entry));
  }

  void read_graphs() {
    // Constants are outputs of `positions`, whose inputs name none, so that it can be read first.
    const Fields part = top_.object("graphs");
    if (const json::Value* positions = part.all().find("positions")) read_graph("positions", *positions, part);
    for (const auto& [name, value] : part.all()) {
      if (name != "positions") read_graph(name, value, part);
    }
    const char* const needed = bundle_.is_step_model() ? "run" : "score";
    if (bundle_.graph(needed) == nullptr) throw part.error("the graph '" + std::string(needed) + "' is missing");
  }

  void read_graph(const std::string& name, const json::Value& value, const Fields& part) {
    static constexpr const char* kFormats[] = {"onnx", "torchscript", "exported-program", "executorch"};
    Fields fields(value, part.place(name));
    Graph graph;
    graph.name = name;
    graph.file = fields.text("file");
    graph.is_onnx = fields.choice("format", kFormats) == 0;
    const Fields fixed = fields.object("fixed");
    for (const auto& [axis, size] : fixed.all()) {
      const auto* number = size.as<std::int64_t>();
      if (number == nullptr || *number < 1 || *number > kLargestAxis) throw fixed.error(shown(axis) + " has no size");
      graph.fixed.emplace(axis, *number);
    }
    const Fields inputs = fields.object("inputs"), outputs = fields.object("outputs");
    for (const auto& [input, entry] : inputs.all()) {
      graph.inputs.push_back(read_input(input, Fields(entry, inputs.place(input)), graph));
    }
    for (const auto& [output, entry] : outputs.all()) {
      Fields tensor(entry, outputs.place(output));
      graph.outputs.push_back({output, read_type(tensor), read_shape(tensor)});
      if (bundle_.is_step_model()) check_steps(graph.outputs.back(), tensor);
      tensor.end();
      if (index_of(bundle_.memory, output, &MemoryEntry::output)) throw tensor.error("a memory, which is not an output");
    }
    fields.end();
    bundle_.graphs.push_back(std::move(graph));
  }

  void read_steps() {
    Fields part = top_.object("steps");
    for (const auto& [purpose, unused] : part.all()) {
      std::vector<Choice>& choices = bundle_.steps[purpose];
      for (const json::Value& each : part.list(purpose.c_str())) {
        choices.push_back(read_choice(Fields(each, part.place(purpose))));
        const Graph &own = bundle_.graphs[choices.back().graph], &first = bundle_.graphs[choices[0].graph];
        const auto are_equal = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
          return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
        };
        if (are_equal(own.outputs, first.outputs) && are_equal(own.fed, first.fed)) continue;
        throw part.error("the graphs of " + shown(purpose) + " have different inputs or outputs");
      }
    }
  }

  // A step model has one purpose, and nothing for tokens; others do not have it.
  void check_purposes() const {
    const DocumentRules& document = bundle_.document;
    const auto& steps = bundle_.steps;
    if ((steps.count("run") != 0) != bundle_.is_step_model()) {
      throw top_.error("steps 'run' without vocab_size 0, or the other way round");
    }
    if (!bundle_.is_step_model()) return;
    for (const char* name : {"score", "generate", "detail", "positions", "encode"}) {
      if (bundle_.graph(name) != nullptr || steps.count(name) != 0) throw top_.error("'run' beside " + shown(name));
    }
    if (bundle_.tokenizer.kind != "none" || document.restart || document.full_document || document.bidirectional) {
      throw top_.error("a step model with a tokenizer or with rules of documents");
    }
  }

  // Require the shape (batch, segment, numbers...) of a tensor of a step model.
  void check_steps(const Tensor& tensor, const Fields& fields) const {
    const std::vector<Axis>& shape = tensor.shape;
    const auto is_free = [](const Axis& axis) { return !axis.name.empty(); };
    if (shape.size() < 2 || shape[0].name != "batch" || shape[1].name != "segment" ||
        std::any_of(shape.begin() + 2, shape.end(), is_free)) {
      throw fields.error("its axes are not batch, segment and numbers");
    }
  }

  Choice read_choice(Fields fields) const {
    const auto graph = index_of(bundle_.graphs, fields.text("graph"));
    if (!graph) throw fields.error("its graph is not there");
    Choice choice{*graph, fields.integer_or_null("max_segment", 1, kLargestAxis).value_or(kUnlimited), {}, false};
    for (const json::Value& each : fields.list("kernels")) {
      const auto* name = each.as<std::string>();
      if (name == nullptr) throw fields.error("'kernels' is not a list of texts");
      choice.kernels.push_back(*name);
    }
    static constexpr const char* kDevices[] = {"accelerator"};
    choice.accelerator = !fields.value("device").is_null() && fields.choice("device", kDevices) == 0;
    fields.end();
    return choice;
  }

  Input read_input(const std::string& name, Fields fields, Graph& graph) {
    static constexpr const char* kFeeds[] = {"tokens", "targets", "position", "offset", "length", "window",
                                             "slots",  "setting", "constant", "memory", "input"};
    const Feed feed = static_cast<Feed>(fields.choice("feed", kFeeds));
    std::optional<std::size_t> index = 0;
    if (feed >= Feed::offset && feed <= Feed::slots) {
      index = index_of(bundle_.rings, fields.text("ring"), &Ring::symbol);
    }
    if (feed == Feed::setting) index = index_of(bundle_.settings, fields.text("setting"));
    if (feed == Feed::memory) index = index_of(bundle_.memory, name, &MemoryEntry::input);
    if (feed == Feed::constant) {
      const Graph* positions = bundle_.graph("positions");
      index = positions == nullptr ? std::nullopt : index_of(positions->outputs, name);
    }
    if (feed == Feed::input) {
      index = graph.fed.size();
      graph.fed.push_back({name, read_type(fields), read_shape(fields)});
      check_steps(graph.fed.back(), fields);
      const std::string& dtype = graph.fed.back().dtype;
      if (dtype == "float16" || dtype == "float64") throw fields.error("an input of " + dtype + ", not of float32");
    }
    fields.end();
    const bool is_of_steps = feed == Feed::input || feed == Feed::memory || feed == Feed::position;
    if (bundle_.is_step_model() ? !is_of_steps : feed == Feed::input) {
      throw fields.error("a feed of step models in a language model, or the other way round");
    }
    if (!index) throw fields.error("what it is fed with is not there");
    if (graph.name == "positions" && feed != Feed::slots && feed != Feed::setting) {
      throw fields.error("constants depend on settings and slots alone");
    }
    return {name, feed, *index};
  }

  void check_files() const {
    std::set<std::string> used;
    for (const Graph& graph : bundle_.graphs) used.insert(graph.file);
    for (const auto& name : {bundle_.tokenizer.file, bundle_.tokenizer.bpe}) {
      if (name) used.insert(*name);
    }
    for (const MemoryEntry& entry : bundle_.memory) {
      if (entry.first_value) used.insert(kFirstMemoryFile);
    }
    for (const std::string& name : used) {
      if (bundle_.files.count(name) == 0) throw top_.error("the file " + shown(name) + " is used, but not in files");
    }
  }

  Bundle& bundle_;
  Fields top_;
};

// Why a file differs from its entry; empty if it does not.
std::string difference(const fs::path& path, const FileEntry& entry) {
  std::ifstream file(path, std::ios::binary);
  Sha256 sum;
  std::int64_t size = 0;
  std::vector<char> chunk(std::size_t{1} << 20);
  while (file) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    sum.update(chunk.data(), static_cast<std::size_t>(file.gcount()));
    size += file.gcount();
  }
  if (size != entry.size) return "has " + std::to_string(size) + " bytes, expected " + std::to_string(entry.size);
  return sum.hexadecimal() == entry.sha256 ? "" : "has another SHA-256";
}

// Whether the real place of a file is within the real folder, or where the hub's cache keeps it: the files of
// `snapshots/REVISION/` are links into the folder `blobs` of the same model.
bool is_within(const fs::path& folder, const fs::path& file) {
  std::error_code failed, missing;
  const fs::path root = fs::canonical(folder, failed), place = fs::canonical(file, missing);
  const fs::path parent = root.parent_path(), blobs = parent.parent_path() / "blobs";
  const auto holds = [&place](const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), place.begin(), place.end()).first == outer.end();
  };
  return !failed && !missing && (holds(root) || (parent.filename() == "snapshots" && holds(blobs)));
}

}  // namespace

std::int64_t step_bytes(const Tensor& tensor) {
  auto bytes = static_cast<double>(item_size(tensor.dtype));
  for (std::size_t i = 2; i < tensor.shape.size(); ++i) bytes *= static_cast<double>(tensor.shape[i].size);
  return static_cast<std::int64_t>(std::min(bytes, static_cast<double>(kLargestSize)));
}

Bundle Bundle::read(const fs::path& folder, const char* digest) {
  const fs::path path = folder / kManifest;
  const std::string where = path.string();
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) {
    throw Error(XLR_ERROR_BUNDLE_NOT_FOUND, folder.string() + ": no bundle, as it has no bundle.json.",
                "Make one with xlexport convert CHECKPOINT.");
  }
  if (fs::file_size(path, failed) > kLargestManifest) {
    throw Error(XLR_ERROR_BUNDLE_FORMAT, where + ": larger than any bundle.json.", kConvertAgain);
  }
  const std::string text = read_file(path), found = sha256(text), line = found + "  " + kManifest + "\n";
  const fs::path digest_path = folder / kDigest;
  const bool has_digest = fs::is_regular_file(digest_path, failed);  // earlier formats have none
  if (has_digest && (fs::file_size(digest_path, failed) != line.size() || read_file(digest_path) != line)) {
    throw Error(XLR_ERROR_BUNDLE_DAMAGED, digest_path.string() + ": not the SHA-256 of bundle.json.", kCopyAgain);
  }
  if (digest != nullptr && found != digest) {
    throw Error(XLR_ERROR_BUNDLE_MISMATCH,
                where + ": its SHA-256 is " + found + ", expected '" + std::string(digest) + "'.",
                "Use the bundle that the application was made with.");
  }
  Bundle bundle = from_json(text, where);
  bundle.digest = found;
  if (!has_digest) throw Error(XLR_ERROR_BUNDLE_DAMAGED, digest_path.string() + ": no such file.", kCopyAgain);
  return bundle;
}

Bundle Bundle::from_json(std::string_view text, const std::string& where) {
  const json::Value value = json::parse(text, where, XLR_ERROR_BUNDLE_FORMAT);
  Bundle bundle;
  Reader(bundle, value, where).read();
  return bundle;
}

const Graph* Bundle::graph(std::string_view name) const {
  const auto place = index_of(graphs, name);
  return place ? &graphs[*place] : nullptr;
}

const Setting* Bundle::mem_len() const {
  const auto place = index_of(settings, "mem_len");
  return place ? &settings[*place] : nullptr;
}

BundleFiles::BundleFiles(const fs::path& folder, const Bundle& bundle, bool compare)
    : folder_(folder), files_(bundle.files) {
  std::vector<std::string> problems;
  for (auto& [name, entry] : files_) {
    std::error_code failed;
    entry.time = fs::last_write_time(folder / name, failed);  // before it is read
    const bool is_there = fs::is_regular_file(folder / name, failed) && is_within(folder, folder / name);
    if (!is_there) problems.push_back(name + " is missing, no regular file, or outside the folder");
  }
  for (const auto& [name, entry] : files_) {
    if (!problems.empty() || !compare) break;
    const std::string problem = difference(folder / name, entry);
    if (!problem.empty()) problems.push_back(name + " " + problem);
  }
  if (problems.empty()) return;
  throw Error(XLR_ERROR_BUNDLE_DAMAGED, folder.string() + ": " + joined(problems) + ".", kCopyAgain);
}

void BundleFiles::require_unchanged() {
  const std::lock_guard<std::mutex> guard(lock_);
  for (auto& [name, entry] : files_) {
    std::error_code failed;
    const auto time = fs::last_write_time(folder_ / name, failed);
    if (!failed && time == entry.time) continue;
    if (failed || !difference(folder_ / name, entry).empty()) {
      throw Error(XLR_ERROR_BUNDLE_DAMAGED, folder_.string() + ": " + name + " was replaced while the bundle was open.",
                  "Load it again.");
    }
    entry.time = time;  // written or copied again, with the same content
  }
}

}  // namespace xlruntime
