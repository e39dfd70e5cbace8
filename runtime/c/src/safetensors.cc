#include "safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "json.h"

namespace xlruntime {
namespace {

struct Type {
  const char* name;  // in a file
  const char* dtype;
  std::size_t size;
};

constexpr Type kTypes[] = {{"BOOL", "bool", 1},   {"I8", "int8", 1},     {"I16", "int16", 2},   {"I32", "int32", 4},
                           {"I64", "int64", 8},   {"U8", "uint8", 1},    {"U16", "uint16", 2},  {"U32", "uint32", 4},
                           {"U64", "uint64", 8},  {"F16", "float16", 2}, {"F32", "float32", 4}, {"F64", "float64", 8}};
constexpr std::size_t kPrefix = 8;  // bytes of the header's length

const Type* find_type(const char* Type::*name, std::string_view wanted) {
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const Type& each) { return each.*name == wanted; });
  return type == std::end(kTypes) ? nullptr : type;
}

template <class T>
bool are_finite(std::string_view data) {
  for (std::size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T number;
    std::memcpy(&number, data.data() + at, sizeof number);
    if (!std::isfinite(number)) return false;
  }
  return true;
}

// Read sizes or offsets, and return whether they are.
bool read_sizes(const json::Object& fields, const char* name, std::vector<std::int64_t>& sizes) {
  const json::Value* value = fields.find(name);
  const auto* array = value == nullptr ? nullptr : value->as<json::Array>();
  if (array == nullptr) return false;
  for (const json::Value& each : *array) {
    const auto* size = each.as<std::int64_t>();
    if (size == nullptr || *size < 0) return false;
    sizes.push_back(*size);
  }
  return true;
}

// Read the entry of a tensor, which lies in `data`. Returns its first byte, or -1 if it is not one.
std::int64_t read_tensor(const json::Value& value, std::string_view data, HeldTensor& tensor) {
  const auto* fields = value.as<json::Object>();
  const json::Value* name = fields == nullptr ? nullptr : fields->find("dtype");
  const auto* text = name == nullptr ? nullptr : name->as<std::string>();
  const Type* type = text == nullptr ? nullptr : find_type(&Type::name, *text);
  std::vector<std::int64_t> offsets;
  if (type == nullptr || !read_sizes(*fields, "shape", tensor.shape) || !read_sizes(*fields, "data_offsets", offsets) ||
      offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > static_cast<std::int64_t>(data.size())) {
    return -1;
  }
  std::int64_t left = offsets[1] - offsets[0];  // divided by each size, so that no product overflows
  const bool is_empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  if (is_empty ? left != 0 : left % static_cast<std::int64_t>(type->size) != 0) return -1;
  left /= static_cast<std::int64_t>(type->size);
  for (const std::int64_t size : tensor.shape) {
    if (is_empty) break;
    if (left % size != 0) return -1;
    left /= size;
  }
  if (!is_empty && left != 1) return -1;
  tensor.dtype = type->dtype;
  tensor.data = data.substr(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(offsets[1] - offsets[0]));
  return offsets[0];
}

}  // namespace

std::size_t item_size(std::string_view dtype) {
  const Type* type = find_type(&Type::dtype, dtype);
  return type == nullptr ? 0 : type->size;
}

bool HeldTensor::is_finite() const {
  if (dtype == "float32") return are_finite<float>(data);
  if (dtype == "float64") return are_finite<double>(data);
  for (std::size_t i = 1; dtype == "float16" && i < data.size(); i += 2) {
    if ((data[i] & 0x7c) == 0x7c) return false;  // the exponent has all bits
  }
  return true;
}

Safetensors Safetensors::read(const std::filesystem::path& path, xlr_status code) {
  return from_bytes(read_file(path), path.string(), code);
}

Safetensors Safetensors::from_bytes(std::string bytes, const std::string& where, xlr_status code) {
  const auto damaged = [&](const std::string& problem) { return Error(code, where + ": " + problem + "."); };
  Safetensors file;
  file.content = std::move(bytes);
  const std::string_view content = file.content;
  std::uint64_t size = 0;
  for (std::size_t i = kPrefix; i-- > 0 && content.size() >= kPrefix;) size = size << 8 | (content[i] & 0xff);
  if (content.size() < kPrefix || size > content.size() - kPrefix) throw damaged("its header is longer than the file");
  file.data = content.substr(kPrefix + static_cast<std::size_t>(size));
  const json::Value header = json::parse(content.substr(kPrefix, static_cast<std::size_t>(size)), where, code);
  if (header.as<json::Object>() == nullptr) throw damaged("its header is not an object");
  std::map<std::int64_t, std::int64_t> places;  // first byte -> end, of tensors that are not empty
  for (const auto& [name, value] : *header.as<json::Object>()) {
    if (name != "__metadata__") {
      HeldTensor tensor;
      const std::int64_t begin = read_tensor(value, file.data, tensor);
      if (begin < 0) throw damaged(shown(name) + " has a type, a shape or a place that no tensor has");
      const bool is_new = tensor.data.empty() || places.emplace(begin, begin + tensor.data.size()).second;
      if (!is_new) throw damaged("tensors overlap");
      file.tensors.emplace(name, std::move(tensor));
      continue;
    }
    if (value.as<json::Object>() == nullptr) throw damaged("its metadata is not an object");
    for (const auto& [key, text] : *value.as<json::Object>()) {
      if (text.as<std::string>() == nullptr) throw damaged("its metadata " + shown(key) + " is not text");
      file.metadata.emplace(key, *text.as<std::string>());
    }
  }
  std::int64_t end = 0;
  for (const auto& [begin, next] : places) {
    if (begin != end) throw damaged("its tensors do not follow one another");
    end = next;
  }
  if (end != static_cast<std::int64_t>(file.data.size())) throw damaged("its tensors are not all of the file");
  return file;
}

std::string safetensors_header(const std::map<std::string, std::string>& metadata,
                               const std::vector<TensorView>& tensors) {
  std::string raw = "{\"__metadata__\":{";
  for (const auto& [name, text] : metadata) {
    raw += (raw.back() == '{' ? "" : ",") + json::quoted(name) + ":" + json::quoted(text);
  }
  raw += "}";
  std::size_t end = 0;
  for (const TensorView& tensor : tensors) {
    std::string shape;
    for (const std::int64_t size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    raw += "," + json::quoted(tensor.name) + ":{\"dtype\":\"" + find_type(&Type::dtype, tensor.dtype)->name +
           "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(end);
    end += tensor.nbytes;
    raw += "," + std::to_string(end) + "]}";
  }
  raw += "}";
  raw.append((kPrefix - raw.size() % kPrefix) % kPrefix, ' ');  // align the tensors
  std::string prefix;
  for (std::size_t i = 0; i < kPrefix; ++i) prefix += static_cast<char>(raw.size() >> 8 * i & 255);
  return prefix + raw;
}

std::string read_file(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) {
    throw Error(XLR_ERROR_FILE, path.string() + ": no such file.");
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content;
  if (file) content.resize(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file || static_cast<std::size_t>(file.gcount()) != content.size()) {
    throw Error(XLR_ERROR_FILE, path.string() + ": cannot be read.");
  }
  return content;
}

}  // namespace xlruntime
