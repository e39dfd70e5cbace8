#include "manifest.h"

#include <algorithm>

#include "sha256.h"

namespace xlruntime {

namespace {

constexpr const char* kDescriptions[] = {"README.md", "parity.json", "quantization.json"};  // nothing runs them
constexpr const char* kComputing[] = {".onnx", ".data", ".pt", ".pt2", ".safetensors"};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

json::Array as_json(const std::vector<Axis>& shape) {
  json::Array sizes;
  for (const Axis& axis : shape) sizes.push_back(axis.as_json());
  return sizes;
}

json::Array as_json(const std::vector<Tensor>& tensors) {
  json::Array fields;
  for (const Tensor& tensor : tensors) {
    json::Object one;
    one.add("name", tensor.name);
    one.add("dtype", tensor.dtype);
    one.add("shape", as_json(tensor.shape));
    fields.push_back(std::move(one));
  }
  return fields;
}

json::Object as_json(const Memory& entry) {
  json::Object fields;
  fields.add("input", entry.input);
  fields.add("output", entry.output);
  fields.add("dtype", entry.dtype);
  fields.add("shape", as_json(entry.shape));
  fields.add("first_value", entry.first_value ? json::Value(*entry.first_value) : json::Value());
  if (entry.layout == MemoryLayout::window) fields.add("layout", "window");
  if (entry.layout == MemoryLayout::state) fields.add("layout", "state");
  return fields;
}

const Tensor* find_tensor(const std::vector<Tensor>& tensors, std::string_view name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [name](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

std::optional<std::string> Memory::symbol() const {
  if (layout != MemoryLayout::ring) return std::nullopt;
  std::optional<std::string> found;
  for (const Axis& axis : shape) {
    if (!axis.is_free() || axis.name == "batch") continue;
    if (found) return std::nullopt;
    found = axis.name;
  }
  return found;
}

std::optional<std::size_t> Memory::row_axis() const {
  if (layout == MemoryLayout::state) return std::nullopt;
  if (layout == MemoryLayout::window) return shape.size() - 2;
  const Axis wanted{symbol().value_or(""), 0};
  return static_cast<std::size_t>(std::find(shape.begin(), shape.end(), wanted) - shape.begin());
}

const Tensor* Graph::input(std::string_view name) const { return find_tensor(inputs, name); }

const Tensor* Graph::output(std::string_view name) const { return find_tensor(outputs, name); }

std::string Graph::metadata(const std::vector<Memory>& memory) const {
  json::Object fields;
  fields.add("file", file);
  fields.add("inputs", as_json(inputs));
  fields.add("outputs", as_json(outputs));
  if (max_segment) fields.add("max_segment", *max_segment);
  if (format == GraphFormat::torchscript) fields.add("format", "torchscript");
  if (format == GraphFormat::exported_program) fields.add("format", "exported-program");
  NamedList<bool> taken;
  for (const Tensor& tensor : inputs) taken.add(tensor.name, true);
  json::Array carried;
  for (const Memory& entry : memory) {
    if (taken.contains(entry.input)) carried.push_back(as_json(entry));
  }
  fields.add("memory", std::move(carried));
  return json::dump(fields, json::Order::as_given, json::Layout::compact);
}

const Memory* Bundle::memory_of_input(std::string_view name) const {
  const auto found =
      std::find_if(memory.begin(), memory.end(), [name](const Memory& entry) { return entry.input == name; });
  return found == memory.end() ? nullptr : &*found;
}

NamedList<FileDigest> Bundle::computing_files() const {
  NamedList<FileDigest> found;
  for (const auto& [name, digest] : files) {
    if (std::any_of(std::begin(kComputing), std::end(kComputing),
                    [&name = name](const char* end) { return ends_with(name, end); })) {
      found.add(name, digest);
    }
  }
  return found;
}

NamedList<FileDigest> Bundle::guarded_files() const {
  NamedList<FileDigest> found;
  for (const auto& [name, digest] : files) {
    if (std::find(std::begin(kDescriptions), std::end(kDescriptions), name) == std::end(kDescriptions)) {
      found.add(name, digest);
    }
  }
  return found;
}

std::string Bundle::fingerprint() const {
  json::Object digests;
  for (const auto& [name, digest] : computing_files()) digests.add(name, digest.sha256);
  return sha256(json::dump(digests, json::Order::sorted));
}

}  // namespace xlruntime
