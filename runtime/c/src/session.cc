#include "session.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <tuple>

#include "errors.h"
#include "onnx_tensors.h"
#include "safetensors.h"

// The kernels, which are linked into this library.
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace xlruntime {
namespace {

// Fused sum and layer normalization: on a CPU several times as slow as separate nodes.
constexpr const char* kSlowerFusion = "SkipLayerNormFusion";
constexpr const char* kConvertAgain = "Copy the bundle again, or convert the checkpoint again.";
constexpr double kLargestLogProb = 1e-3;  // rounding may raise a logarithm of 1 above zero
constexpr double kEntropyError = 0.01;    // in nats, relative to 1 + the largest entropy; float16 rounds as coarsely

using Options = std::unique_ptr<OrtSessionOptions, Release<ort::ReleaseSessionOptions>>;

// The options of Python's runtime, except one: its interface also switches off the reuse of buffers within a step, for
// which C has no function.
Options make_options(const Onnxruntime& ort, const std::string& folder, const SessionOptions& chosen) {
  OrtSessionOptions* made = nullptr;
  ort.call<ort::CreateSessionOptions>(&made);
  Options options(made, {&ort});
  const auto set = [&](const char* key, const char* value) { ort.call<ort::AddSessionConfigEntry>(made, key, value); };
  ort.call<ort::SetIntraOpNumThreads>(made, chosen.threads);
  ort.call<ort::SetInterOpNumThreads>(made, 1);
  ort.call<ort::SetSessionLogSeverityLevel>(made, int{ort::kFatal});  // it also returns what it logs
  ort.call<ort::DisableMemPattern>(made);
  // Spinning threads help while a step runs; between steps they would only occupy the caller's cores.
  set("session.force_spinning_stop", "1");
  set("optimization.disable_specified_optimizers", kSlowerFusion);
  set("session.model_external_initializers_file_folder_path", folder.c_str());
  set("session.load_model_format", "ONNX");  // never ONNX Runtime's own format
  if (chosen.kernels) ort.check(RegisterCustomOps(made, ort.base()));
  return options;
}

// Read a graph that names only listed files. Add those that are links out of its folder, as in the hub's cache, to
// `linked`: ONNX Runtime does not follow them.
std::string read_graph(const std::filesystem::path& path, const Bundle& bundle,
                       std::map<std::filesystem::path, std::string>& linked) {
  std::string content = read_file(path);
  std::error_code missing;  // which ONNX Runtime reports
  const std::filesystem::path folder = path.parent_path(), real = std::filesystem::canonical(folder, missing);
  const auto refuse = [&](const std::string& problem) {
    return Error(XLR_ERROR_BUNDLE_GRAPH, path.string() + ": " + problem + ".", kConvertAgain);
  };
  const bool is_graph = each_external_file(content, [&](std::string_view name) {
    if (bundle.files.count(std::string(name)) != 0) {
      const std::filesystem::path file = folder / name;
      const std::filesystem::path place = std::filesystem::canonical(file, missing);
      if (!missing && place.parent_path() != real && linked.count(name) == 0) linked[name] = read_file(file);
      return;
    }
    throw refuse("its weights lie in " + shown(name) + ", which bundle.json does not list");
  });
  if (!is_graph) throw refuse("not an ONNX graph");
  return content;
}

// Whether all values are within a range, in the precision of the output: rounding alone could put one beyond it. NaN
// passes: whoever asked for the step handles it.
template <class T>
bool are_within(const Result& result, double least, double most) {
  std::size_t n = 1;
  for (const std::int64_t size : result.shape) n *= static_cast<std::size_t>(size);
  const T* const values = result.data<T>();
  const T low = static_cast<T>(least), high = static_cast<T>(most);
  return std::none_of(values, values + n, [=](T value) { return value < low || value > high; });
}

bool has_possible_values(const Result& result, std::int64_t vocab_size) {
  const std::string &name = result.output->name, &dtype = result.output->dtype;
  const double n = static_cast<double>(vocab_size), largest_entropy = std::log(n);
  const double slack = kEntropyError * (1 + largest_entropy);
  if (dtype == "float32") {
    if (name == "log_prob" || name == "top_log_probs") return are_within<float>(result, -HUGE_VAL, kLargestLogProb);
    if (name == "entropy") return are_within<float>(result, -slack, largest_entropy + slack);
  } else if (dtype == "int64") {
    if (name == "rank") return are_within<std::int64_t>(result, 1, n);
    if (name == "top_ids") return are_within<std::int64_t>(result, 0, n - 1);
  }
  return true;
}

}  // namespace

Session::Session(const Onnxruntime& ort, const std::filesystem::path& folder, const Bundle& bundle, const Graph& graph,
                 const SessionOptions& options)
    : ort_(ort), bundle_(bundle), graph_(graph), file_((folder / graph.file).string()) {
  std::map<std::filesystem::path, std::string> linked;
  const std::string content = read_graph(folder / graph.file, bundle, linked);
  try {
    const Options chosen = make_options(ort, folder.string(), options);
    for (auto& [name, bytes] : linked) {
      const auto* const file = name.c_str();
      char* const data = bytes.data();
      const std::size_t size = bytes.size();
      ort.call<ort::AddExternalInitializersFromFilesInMemory>(chosen.get(), &file, &data, &size, std::size_t{1});
    }
    OrtSession* session = nullptr;
    ort.call<ort::CreateSessionFromArray>(ort.env(), static_cast<const void*>(content.data()), content.size(),
                                          static_cast<const OrtSessionOptions*>(chosen.get()), &session);
    session_.reset(session);
    require_names();
  } catch (const OrtFailure& failure) {
    throw Error(XLR_ERROR_BUNDLE_GRAPH,
                file_ + ": ONNX Runtime " + ort.version() + " cannot load it (" + failure.what() + ").",
                "Copy the bundle again, convert the checkpoint again, or upgrade ONNX Runtime.");
  }
}

template <class Count, class Name>
std::set<std::string> Session::names() const {
  std::size_t count = 0;
  ort_.call<Count>(static_cast<const OrtSession*>(session_.get()), &count);
  std::set<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    ort_.call<Name>(static_cast<const OrtSession*>(session_.get()), i, ort_.allocator(), &name);
    names.insert(name);
    ort_.call<ort::AllocatorFree>(ort_.allocator(), static_cast<void*>(name));
  }
  return names;
}

void Session::require_names() const {
  std::set<std::string> inputs, outputs;
  for (const Tensor& output : graph_.outputs) outputs.insert(output.name);
  for (const Input& input : graph_.inputs) {
    inputs.insert(input.name);
    if (input.feed == Feed::memory) outputs.insert(bundle_.memory[input.index].output);
  }
  for (const std::string& name : outputs) {  // ONNX Runtime would pass it on, and leave the buffer as it was
    if (inputs.count(name) != 0) {
      throw Error(XLR_ERROR_BUNDLE_GRAPH, file_ + ": " + shown(name) + " is an input and an output.", kConvertAgain);
    }
  }
  if (inputs == names<ort::SessionGetInputCount, ort::SessionGetInputName>() &&
      outputs == names<ort::SessionGetOutputCount, ort::SessionGetOutputName>()) {
    return;
  }
  throw Error(XLR_ERROR_BUNDLE_GRAPH, file_ + ": its inputs and outputs are not those of bundle.json.", kConvertAgain);
}

void Session::call(const Bindings& inputs, const std::vector<const char*>& names, OrtValue** values) const {
  try {
    ort_.call<ort::Run>(session_.get(), static_cast<const OrtRunOptions*>(nullptr), inputs.names.data(),
                        inputs.values.data(), inputs.names.size(), names.data(), names.size(), values);
  } catch (const OrtFailure& failure) {
    const std::string reason = failure.what();
    if (reason.find("allocat") != std::string::npos) throw std::bad_alloc();
    throw Error(XLR_ERROR_BUNDLE_GRAPH, file_ + ": ONNX Runtime cannot run it (" + reason + ").", kConvertAgain);
  }
}

void Session::run(const Bindings& inputs, const Bindings& outputs) const {
  call(inputs, outputs.names, const_cast<OrtValue**>(outputs.values.data()));  // it writes only pointers that are null
}

std::vector<Result> Session::run(const Bindings& inputs, const Bindings& written, std::int64_t batch,
                                 std::int64_t segment) const {
  std::vector<const char*> names = written.names;
  std::vector<OrtValue*> values;
  values.reserve(names.size() + graph_.outputs.size());
  for (const OrtValue* value : written.values) values.push_back(const_cast<OrtValue*>(value));
  for (const Tensor& output : graph_.outputs) {
    names.push_back(output.name.c_str());
    values.push_back(nullptr);
  }
  call(inputs, names, values.data());
  std::vector<Result> results;
  results.reserve(graph_.outputs.size());
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {  // own all of them before anything can throw
    results.push_back({&graph_.outputs[i], Value(ort_, values[written.names.size() + i]), {}, {}});
  }
  for (Result& result : results) require_described(result, batch, segment);
  return results;
}

// Refuse results of another type or shape, or out of range: a graph may return anything.
void Session::require_described(Result& result, std::int64_t batch, std::int64_t segment) const {
  const Tensor& output = *result.output;
  std::string dtype;
  if (result.value.is_tensor()) std::tie(dtype, result.shape) = result.value.dtype_and_shape();
  bool fits = dtype == output.dtype && result.shape.size() == output.shape.size();
  for (std::size_t i = 0; fits && i < result.shape.size(); ++i) {
    const Axis& axis = output.shape[i];
    const std::int64_t size = axis.name == "batch" ? batch : axis.name == "segment" ? segment : axis.size;
    fits = size == 0 || size == result.shape[i];
  }
  if (fits && has_possible_values(result, bundle_.vocab_size)) return;
  const std::string what = fits ? "values" : "a type or a shape (" + shape_text(result.shape) + ")";
  throw Error(XLR_ERROR_BUNDLE_GRAPH,
              file_ + ": its output " + shown(output.name) + " has " + what + " that it must not have.", kConvertAgain);
}

}  // namespace xlruntime
