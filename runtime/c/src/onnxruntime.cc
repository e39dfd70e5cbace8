#include "onnxruntime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "errors.h"
#include "safetensors.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#include <sys/mman.h>
#endif

namespace xlruntime {
namespace {

constexpr const char* kVariable = "XLRUNTIME_ONNXRUNTIME";
constexpr const char* kTelemetry = "ORT_DISABLE_TELEMETRY";
constexpr const char* kOldest = "1.24.1";  // earlier versions read weights from any file that a graph names
#if defined(__aarch64__) || defined(_M_ARM64)
constexpr const char* kWrong = "1.27.0";  // on ARM with SME, equal products differ: microsoft/onnxruntime#31569
#else
constexpr const char* kWrong = "";
#endif
constexpr const char* kHint =
    "Install ONNX Runtime 1.24.1 or newer (on ARM, not 1.27.0), and name the file of its library in XLRUNTIME_ONNXRUNTIME.";
constexpr std::size_t kAlignment = 64;  // bytes: a vector of AVX-512, and a line of the cache
constexpr std::size_t kHugePage = std::size_t{2} << 20;

#if defined(_WIN32)
constexpr const char* kNames[] = {"onnxruntime.dll"};
#elif defined(__APPLE__)
constexpr const char* kNames[] = {"libonnxruntime.1.dylib", "libonnxruntime.dylib"};
#else
constexpr const char* kNames[] = {"libonnxruntime.so.1", "libonnxruntime.so"};
#endif

using GetApiBase = const OrtApiBase* (*)();

// Numpy's names of element types, by the numbers that ONNX gives them.
constexpr const char* kTypes[] = {"",      "float32", "uint8", "int8",    "uint16",  "int16",  "int32",
                                  "int64", "",        "bool",  "float16", "float64", "uint32", "uint64"};

int element_type(std::string_view dtype) {
  const auto found = std::find(std::begin(kTypes), std::end(kTypes), dtype);
  return static_cast<int>(found - std::begin(kTypes));  // manifests have no other types
}

std::align_val_t alignment_of(std::size_t nbytes) {
  return std::align_val_t{nbytes < kHugePage ? kAlignment : kHugePage};
}

// Large memory lies on pages of 2 MB if Linux has them, which a token reads faster than small ones.
void* allocate(std::size_t nbytes) {
  void* const memory = ::operator new(std::max(nbytes, std::size_t{1}), alignment_of(nbytes));
#if defined(MADV_HUGEPAGE)
  if (nbytes >= kHugePage) madvise(memory, nbytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // if not, pages stay small
#endif
  return memory;
}

// Load a library; return its entry point, or null with the reason in `reason`.
GetApiBase open_library(const std::string& file, std::string& reason) {
#if defined(_WIN32)
  HMODULE library = LoadLibraryA(file.c_str());
  if (library == nullptr) {
    reason = "error " + std::to_string(GetLastError());
    return nullptr;
  }
  auto* entry = reinterpret_cast<void*>(GetProcAddress(library, "OrtGetApiBase"));
#else
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    reason = text == nullptr ? file : text;
    return nullptr;
  }
  void* entry = dlsym(library, "OrtGetApiBase");
#endif
  if (entry == nullptr) reason = file + ": not a library of ONNX Runtime";
  return reinterpret_cast<GetApiBase>(entry);
}

bool is_loaded(const std::string& file) {
#if defined(_WIN32)
  return GetModuleHandleA(file.c_str()) != nullptr;
#else
  return dlopen(file.c_str(), RTLD_NOLOAD | RTLD_LAZY) != nullptr;  // it stays loaded in any case
#endif
}

// Return whether telemetry is the program's own choice: it has set the variable.
bool program_chooses_telemetry() {
  static const bool chosen = std::getenv(kTelemetry) != nullptr;  // asked before this library sets it
  return chosen;
}

GetApiBase find_library(const std::string& file) {
  std::vector<std::string> names{file};
  if (file.empty()) names.assign(std::begin(kNames), std::end(kNames));
  // Only the first call changes the environment, which other threads may read, and only before a library reads it.
  if (!program_chooses_telemetry() && !std::getenv(kTelemetry) && std::none_of(names.begin(), names.end(), is_loaded)) {
#if defined(_WIN32)
    _putenv_s(kTelemetry, "1");
#else
    setenv(kTelemetry, "1", 0);
#endif
  }
  std::string first_reason;
  for (const auto& name : names) {
    std::string reason;
    if (GetApiBase entry = open_library(name, reason)) return entry;
    if (first_reason.empty()) first_reason = reason;
  }
  throw Error(XLR_ERROR_PROVIDER, "ONNX Runtime cannot be loaded (" + first_reason + ").", kHint);
}

}  // namespace

bool Onnxruntime::is_at_least(const std::string& oldest) const {
  const char *own = version_.c_str(), *wanted = oldest.c_str();
  for (int i = 0; i < 3; ++i) {
    char *own_end, *wanted_end;
    const long a = std::strtol(own, &own_end, 10), b = std::strtol(wanted, &wanted_end, 10);
    if (a != b) return a > b;
    own = *own_end == '.' ? own_end + 1 : own_end;
    wanted = *wanted_end == '.' ? wanted_end + 1 : wanted_end;
  }
  return true;
}

const Onnxruntime& Onnxruntime::load(const std::string& file) {
  static std::mutex lock;
  static auto& loaded =
      *new std::map<std::string, std::unique_ptr<Onnxruntime>>;  // never destroyed: threads may use it
  const char* named = std::getenv(kVariable);
  const std::string wanted = !file.empty() ? file : named == nullptr ? "" : named;
  const std::lock_guard<std::mutex> guard(lock);
  auto& library = loaded[wanted];
  if (library == nullptr) library.reset(new Onnxruntime(find_library(wanted)(), wanted));
  return *library;
}

Onnxruntime::Onnxruntime(const OrtApiBase* base, const std::string& file)
    : base_(base), version_(base->GetVersionString()) {
  const bool wrong = version_ == kWrong;
  if (wrong || !is_at_least(kOldest)) {
    throw Error(
        XLR_ERROR_PROVIDER,
        (file.empty() ? "" : file + ": ") + "ONNX Runtime is " + version_ +
            (wrong ? ", which computes wrong products on ARM processors (microsoft/onnxruntime#31569)."
                   : ", expected 1.24.1 or newer: earlier ones let a graph read any file."),
        kHint);
  }
  api_ = base->GetApi(ORT_VERSION_OF_TABLE);
  call<ort::CreateEnv>(int{ort::kFatal}, "xlruntime", &env_);
  if (!program_chooses_telemetry()) call<ort::DisableTelemetryEvents>(env_);  // also if it was loaded before
  call<ort::CreateCpuMemoryInfo>(int{ort::kDeviceAllocator}, int{ort::kDefaultMemory}, &cpu_);
  call<ort::GetAllocatorWithDefaultOptions>(&allocator_);
}

void Onnxruntime::check(OrtStatus* status) const {
  if (status == nullptr) return;
  std::string message = ort::GetErrorMessage::call(api_, status);
  ort::ReleaseStatus::call(api_, status);
  message = message.substr(0, message.find('\n'));
  throw OrtFailure(message);
}

Value Onnxruntime::tensor(void* data, std::size_t nbytes, const std::vector<std::int64_t>& shape,
                          std::string_view dtype) const {
  OrtValue* value = nullptr;
  call<ort::CreateTensorWithDataAsOrtValue>(cpu_, data, nbytes, shape.data(), shape.size(), element_type(dtype),
                                            &value);
  return Value(*this, value);
}

bool Value::is_tensor() const {
  int found = 0;
  if (value_ != nullptr) value_.get_deleter().ort->call<ort::IsTensor>(get(), &found);
  return found != 0;
}

std::pair<std::string, std::vector<std::int64_t>> Value::dtype_and_shape() const {
  const Onnxruntime& ort = *value_.get_deleter().ort;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ort.call<ort::GetTensorTypeAndShape>(get(), &info);
  int type = 0;
  ort.call<ort::GetTensorElementType>(info, &type);
  std::size_t axes = 0;
  ort.call<ort::GetDimensionsCount>(info, &axes);
  std::vector<std::int64_t> sizes(axes);
  ort.call<ort::GetDimensions>(info, sizes.data(), axes);
  ort.release<ort::ReleaseTensorTypeAndShapeInfo>(info);
  const bool known = type >= 0 && type < static_cast<int>(std::size(kTypes));
  return {known ? kTypes[type] : "", sizes};
}

void* Value::data() const {
  void* data = nullptr;
  value_.get_deleter().ort->call<ort::GetTensorMutableData>(get(), &data);
  return data;
}

void Buffer::Free::operator()(void* memory) const { ::operator delete(memory, alignment_of(nbytes)); }

Buffer::Buffer(const Onnxruntime& ort, std::string dtype, std::vector<std::int64_t> shape)
    : dtype_(std::move(dtype)),
      shape_(std::move(shape)),
      nbytes_(static_cast<std::size_t>(elements(shape_)) * item_size(dtype_)),
      data_(allocate(nbytes_), Free{nbytes_}),
      value_(ort.tensor(data_.get(), nbytes_, shape_, dtype_)) {}

Buffer Buffer::copy(const Onnxruntime& ort) const {
  Buffer twin(ort, dtype_, shape_);
  std::memcpy(twin.data(), data(), nbytes_);
  return twin;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

}  // namespace xlruntime
