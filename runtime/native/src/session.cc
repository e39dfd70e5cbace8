#include "session.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "error.h"
#include "graph_gate.h"
#include "messages.h"
#include "output_check.h"

// The kernels of ops/, which are linked into this library.
extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace xlruntime {
namespace {

// Fused sum and layer normalization: on a CPU several times as slow as separate nodes.
constexpr const char* kSlowerFusion = "SkipLayerNormFusion";

// ONNX Runtime's options, released at the end of a block.
class Options {
 public:
  explicit Options(const Onnxruntime& ort) : ort_(ort) { ort.call<ort::CreateSessionOptions>(&options_); }
  ~Options() { ort_.release<ort::ReleaseSessionOptions>(options_); }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  OrtSessionOptions* get() const { return options_; }
  void set(const char* key, const char* value) { ort_.call<ort::AddSessionConfigEntry>(options_, key, value); }

 private:
  const Onnxruntime& ort_;
  OrtSessionOptions* options_ = nullptr;
};

// The options of Python's runtime, except one: its interface also switches off the reuse of buffers within a step, for
// which C has no function.
void choose_options(const Onnxruntime& ort, Options& options, const std::string& folder, const SessionOptions& chosen) {
  ort.call<ort::SetIntraOpNumThreads>(options.get(), chosen.threads);
  ort.call<ort::SetInterOpNumThreads>(options.get(), 1);
  ort.call<ort::SetSessionLogSeverityLevel>(options.get(), int{ort::kFatal});  // it also returns what it logs
  ort.call<ort::DisableMemPattern>(options.get());
  // Spinning threads help while a step runs; between steps they would only occupy the caller's cores.
  options.set("session.force_spinning_stop", "1");
  options.set("optimization.disable_specified_optimizers", kSlowerFusion);
  options.set("session.model_external_initializers_file_folder_path", folder.c_str());
  options.set("session.load_model_format", "ONNX");  // never ONNX Runtime's own format
  if (chosen.kernels) ort.check(RegisterCustomOps(options.get(), ort.base()));
}

}  // namespace

Session::Session(const Onnxruntime& ort, const std::filesystem::path& folder, const Bundle& bundle, const Graph& graph,
                 const SessionOptions& options)
    : ort_(ort), file_((folder / graph.file).string()) {
  for (const Tensor& tensor : graph.inputs) inputs_.insert(tensor.name);
  for (const Tensor& tensor : graph.outputs) {
    const auto writes_it = [&](const Memory& entry) { return entry.output == tensor.name; };
    if (std::none_of(bundle.memory.begin(), bundle.memory.end(), writes_it)) returned_.push_back(&tensor);
  }
  const std::string content = read_graph(folder / graph.file, bundle.guarded_files());
  try {
    Options chosen(ort);
    choose_options(ort, chosen, folder.string(), options);
    ort.call<ort::CreateSessionFromArray>(ort.env(), static_cast<const void*>(content.data()), content.size(),
                                          static_cast<const OrtSessionOptions*>(chosen.get()), &session_);
  } catch (const OrtFailure& failure) {
    throw Error(ErrorCode::bundle,
                file_ + ": ONNX Runtime " + ort.version() + " cannot load it (" + failure.what() + ").",
                "Copy the bundle again, convert the checkpoint again, or upgrade ONNX Runtime.");
  }
  try {
    require_outputs(graph);
  } catch (...) {
    ort_.release<ort::ReleaseSession>(session_);
    throw;
  }
}

void Session::require_outputs(const Graph& graph) const {
  std::size_t count = 0;
  ort_.call<ort::SessionGetOutputCount>(static_cast<const OrtSession*>(session_), &count);
  std::unordered_set<std::string> given;
  for (std::size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    ort_.call<ort::SessionGetOutputName>(static_cast<const OrtSession*>(session_), i, ort_.allocator(), &name);
    given.insert(name);
    ort_.call<ort::AllocatorFree>(ort_.allocator(), static_cast<void*>(name));
  }
  std::vector<std::string> missing;
  for (const Tensor& tensor : graph.outputs) {
    if (given.count(tensor.name) == 0) missing.push_back(named(tensor.name));
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::bundle, file_ + ": has no output " + listed(missing) + ", which bundle.json describes.",
                "Convert the checkpoint again.");
  }
}

Session::~Session() { ort_.release<ort::ReleaseSession>(session_); }

std::optional<std::string> Session::metadata() const {
  OrtModelMetadata* metadata = nullptr;
  ort_.call<ort::SessionGetModelMetadata>(static_cast<const OrtSession*>(session_), &metadata);
  char* found = nullptr;
  ort_.call<ort::ModelMetadataLookupCustomMetadataMap>(static_cast<const OrtModelMetadata*>(metadata), ort_.allocator(),
                                                       kMetadataKey, &found);
  ort_.release<ort::ReleaseModelMetadata>(metadata);
  if (found == nullptr) return std::nullopt;
  std::string text = found;
  ort_.call<ort::AllocatorFree>(ort_.allocator(), static_cast<void*>(found));
  return text;
}

std::vector<Output> Session::run(const Bindings& inputs, const Bindings& written, std::int64_t batch,
                                 std::int64_t segment) const {
  std::vector<const char*> names = written.names;
  std::vector<OrtValue*> values;
  for (const OrtValue* value : written.values) values.push_back(const_cast<OrtValue*>(value));
  for (const Tensor* tensor : returned_) {
    names.push_back(tensor->name.c_str());
    values.push_back(nullptr);
  }
  try {
    ort_.call<ort::Run>(session_, static_cast<const OrtRunOptions*>(nullptr), inputs.names.data(), inputs.values.data(),
                        inputs.names.size(), names.data(), names.size(), values.data());
  } catch (const OrtFailure& failure) {
    const std::string reason = failure.what();
    if (reason.find("allocat") != std::string::npos) throw std::bad_alloc();
    throw Error(ErrorCode::bundle, file_ + ": ONNX Runtime cannot run it (" + reason + ").",
                "Copy the bundle again, or convert the checkpoint again.");
  }
  const std::size_t first = written.names.size();
  std::vector<Output> returned;
  for (std::size_t i = 0; i < returned_.size(); ++i) {  // own all of them before anything can throw
    returned.push_back({&returned_[i]->name, Value(ort_, values[first + i]), {}, {}});
  }
  for (std::size_t i = 0; i < returned_.size(); ++i) {
    Output& output = returned[i];
    if (!output.value.is_tensor()) {
      throw Error(ErrorCode::bundle, file_ + ": output " + named(*output.name) + " is not a tensor.",
                  "Convert the checkpoint again.");
    }
    output.dtype = output.value.dtype();
    output.shape = output.value.shape();
    require_kind(file_, *returned_[i], output.dtype, output.shape, batch, segment);
  }
  return returned;
}

}  // namespace xlruntime
