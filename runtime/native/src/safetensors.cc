#include "safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "error.h"
#include "messages.h"
#include "unicode.h"

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
constexpr std::int64_t kLargestSize = std::int64_t{1} << 62;
constexpr std::size_t kPrefix = 8;  // bytes of the header's length

const Type* type_of_dtype(std::string_view dtype) {
  const auto found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [dtype](const Type& type) { return type.dtype == dtype; });
  return found == std::end(kTypes) ? nullptr : found;
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 != 0 ? -size : size;
}

template <class T>
T number_at(const std::string& data, std::size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

// A tensor as the header describes it.
struct Place {
  std::string name;
  const Type* type = nullptr;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;
};

class Header {
 public:
  Header(const Budget& budget, const json::Object& fields, std::int64_t data_size) : budget_(budget) {
    for (const auto& [name, value] : fields) {
      require_utf8(name);
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        places.push_back(read_place(name, value));
      }
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::int64_t end = 0;
    for (const Place& place : places) {
      if (place.begin != end) throw damaged(named(place.name) + " does not follow the tensor before it");
      end = place.end;
    }
    if (end != data_size) {
      throw damaged("its tensors have " + with_commas(end) + " bytes, but " + with_commas(data_size) + " follow");
    }
  }

  NamedList<std::string> metadata;
  std::vector<Place> places;

 private:
  Error damaged(const std::string& problem) const { return budget_.damaged(problem); }

  void read_metadata(const json::Value& value) {
    const auto* object = value.as<json::Object>();
    if (object == nullptr) throw damaged("its metadata is not an object");
    for (const auto& [name, text] : *object) {
      if (text.as<std::string>() == nullptr) throw damaged("its metadata " + named(name) + " is not text");
      require_utf8(name);
      require_utf8(*text.as<std::string>());
      metadata.add(name, *text.as<std::string>());
    }
  }

  // Refuse half of a surrogate pair, which an escape may hold.
  void require_utf8(const std::string& text) const {
    if (first_wrong_byte(text) != std::string_view::npos) throw damaged("its header has half of a surrogate pair");
  }

  Place read_place(const std::string& name, const json::Value& value) const {
    Place place;
    place.name = name;
    const auto* fields = value.as<json::Object>();
    const json::Value* type = fields == nullptr ? nullptr : fields->find("dtype");
    const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes), [type](const Type& candidate) {
      return type != nullptr && type->as<std::string>() != nullptr && *type->as<std::string>() == candidate.name;
    });
    if (known == std::end(kTypes)) {
      throw damaged(named(name) + " is of type " + (type == nullptr ? "None" : shown_value(*type)) +
                    ", which no state has");
    }
    place.type = known;
    place.shape = read_sizes(name, *fields, "shape");
    const std::vector<std::int64_t> offsets = read_sizes(name, *fields, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) throw damaged(named(name) + " has no place");
    place.begin = offsets[0];
    place.end = offsets[1];
    if (size_of(name, place) != place.end - place.begin) {
      throw damaged(named(name) + " has " + with_commas(place.end - place.begin) + " bytes, which is not its shape");
    }
    return place;
  }

  std::vector<std::int64_t> read_sizes(const std::string& name, const json::Object& fields, const char* key) const {
    std::vector<std::int64_t> sizes;
    const json::Value* value = fields.find(key);
    const auto* array = value == nullptr ? nullptr : value->as<json::Array>();
    if (array == nullptr) throw damaged(named(name) + " has no " + key);
    for (const json::Value& size : *array) {
      const auto* number = size.as<std::int64_t>();
      if (number == nullptr || *number < 0 || *number > kLargestSize) {
        throw damaged(named(name) + " has the size " + shown_value(size));
      }
      sizes.push_back(*number);
    }
    return sizes;
  }

  std::int64_t size_of(const std::string& name, const Place& place) const {
    std::int64_t size = static_cast<std::int64_t>(place.type->size);
    const bool is_empty = std::find(place.shape.begin(), place.shape.end(), 0) != place.shape.end();
    for (const std::int64_t axis : place.shape) {
      if (is_empty) return 0;
      if (axis > kLargestSize / size) throw damaged(named(name) + " has a shape that no memory holds");
      size *= axis;
    }
    return size;
  }

  const Budget& budget_;
};

}  // namespace

std::size_t item_size(std::string_view dtype) {
  const Type* type = type_of_dtype(dtype);
  return type == nullptr ? 0 : type->size;
}

bool HeldTensor::is_finite() const {
  if (dtype == "float32") {
    for (std::size_t i = 0; i < data.size() / 4; ++i) {
      if (!std::isfinite(number_at<float>(data, i))) return false;
    }
  } else if (dtype == "float64") {
    for (std::size_t i = 0; i < data.size() / 8; ++i) {
      if (!std::isfinite(number_at<double>(data, i))) return false;
    }
  } else if (dtype == "float16") {
    for (std::size_t i = 0; i < data.size() / 2; ++i) {
      if ((number_at<std::uint16_t>(data, i) >> 10 & 31) == 31) return false;
    }
  }
  return true;
}

std::vector<double> HeldTensor::values() const {
  const std::size_t n = data.size() / item_size(dtype);
  std::vector<double> found;
  found.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    found.push_back(dtype == "float32"   ? number_at<float>(data, i)
                    : dtype == "float64" ? number_at<double>(data, i)
                                         : half_value(number_at<std::uint16_t>(data, i)));
  }
  return found;
}

std::size_t TensorView::nbytes() const {
  std::size_t size = item_size(dtype);
  for (const std::int64_t axis : shape) size *= static_cast<std::size_t>(axis);
  return size;
}

SafetensorsFile read_safetensors(const std::filesystem::path& path, Budget& budget) {
  std::error_code failed;
  if (std::filesystem::exists(path, failed) && !std::filesystem::is_regular_file(path, failed)) {
    throw budget.damaged("not a file");
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw Error(ErrorCode::file, path.string() + ": cannot be read.");
  const auto follow = static_cast<std::int64_t>(file.tellg()) - static_cast<std::int64_t>(kPrefix);
  file.seekg(0);
  const auto take = [&](std::int64_t n) {
    std::string bytes(static_cast<std::size_t>(n), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(n));
    if (file.gcount() != n) throw budget.damaged("it became shorter while it was read");
    return bytes;
  };
  std::uint64_t header_size = 0;
  if (follow >= 0) {
    const std::string prefix = take(kPrefix);
    for (std::size_t i = 0; i < kPrefix; ++i) {
      header_size |= std::uint64_t{static_cast<unsigned char>(prefix[i])} << 8 * i;
    }
  }
  if (follow < 0 || header_size > static_cast<std::uint64_t>(follow)) {
    throw budget.damaged("its header has " + grouped(std::to_string(header_size)) + " bytes, but only " +
                         with_commas(std::max<std::int64_t>(follow, 0)) + " follow");
  }
  const auto size = static_cast<std::int64_t>(header_size);
  budget.charge(size);
  const json::Value fields = json::parse(take(size), budget);
  const auto* object = fields.as<json::Object>();
  if (object == nullptr) throw budget.damaged("its header is not an object");
  Header header(budget, *object, follow - size);
  SafetensorsFile found;
  found.metadata = std::move(header.metadata);
  for (Place& place : header.places) {
    std::string data = take(place.end - place.begin);
    found.tensors.add(std::move(place.name), {place.type->dtype, std::move(place.shape), std::move(data)});
  }
  return found;
}

std::string safetensors_header(const NamedList<std::string>& metadata, const std::vector<TensorView>& tensors) {
  json::Object header, texts;
  for (const auto& [name, text] : metadata) texts.add(name, text);
  header.add("__metadata__", std::move(texts));
  std::int64_t end = 0;
  for (const TensorView& tensor : tensors) {
    json::Object fields;
    json::Array shape(tensor.shape.begin(), tensor.shape.end());
    const std::int64_t begin = end;
    end += static_cast<std::int64_t>(tensor.nbytes());
    fields.add("dtype", type_of_dtype(tensor.dtype)->name);
    fields.add("shape", std::move(shape));
    fields.add("data_offsets", json::Array{begin, end});
    header.add(tensor.name, std::move(fields));
  }
  std::string raw = json::dump(header);
  raw.append((kPrefix - raw.size() % kPrefix) % kPrefix, ' ');  // align the tensors
  std::string prefix;
  for (std::size_t i = 0; i < kPrefix; ++i) prefix += static_cast<char>(raw.size() >> 8 * i & 255);
  return prefix + raw;
}

}  // namespace xlruntime
