#include "state_file.h"

#include <algorithm>

#include "atomic_output.h"
#include "error.h"
#include "messages.h"
#include "sha256.h"

namespace xlruntime {

namespace {

constexpr const char* kMetadataName = "xlexport";

// The SHA-256 of fields and tensors: the format itself would not notice a flipped byte.
std::string digest(const json::Object& fields, std::vector<TensorView> tensors) {
  Sha256 sum;
  sum.update(json::dump(fields, json::Order::sorted));
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  for (const TensorView& tensor : tensors) {
    sum.update(tensor.name + " " + tensor.dtype + " " + shape_of(tensor.shape));
    sum.update(tensor.data, tensor.nbytes());
  }
  return sum.hexadecimal();
}

// Take the digest out of the fields, and return whether it fits the fields and tensors.
bool is_intact(json::Object& fields, const NamedList<HeldTensor>& tensors) {
  const json::Value* found = fields.find("sha256");
  const auto* stated = found == nullptr ? nullptr : found->as<std::string>();
  if (stated == nullptr) return false;
  const std::string wanted = *stated;
  fields.erase("sha256");
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) views.push_back({name, tensor.dtype, tensor.shape, tensor.data.data()});
  return digest(fields, std::move(views)) == wanted;
}

std::string without(const std::string& start, std::string text) {
  if (text.compare(0, start.size(), start) == 0) text.erase(0, start.size());
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

bool equals(const json::Value* value, const json::Value& expected) {
  return value != nullptr && value->content.index() == expected.content.index() &&
         json::dump(*value) == json::dump(expected);
}

}  // namespace

void write_state(const std::filesystem::path& path, const std::string& kind, std::int64_t version,
                 const json::Object& fields, const std::vector<TensorView>& tensors) {
  json::Object state;
  state.add("kind", kind);
  state.add("version", version);
  for (const auto& [name, value] : fields) state.add(name, value);
  state.add("sha256", digest(state, tensors));
  NamedList<std::string> metadata;
  metadata.add(kMetadataName, json::dump(state));
  const std::string header = safetensors_header(metadata, tensors);
  write_file(path, [&](const WriteBytes& write) {
    write(header.data(), header.size());
    for (const TensorView& tensor : tensors) write(tensor.data, tensor.nbytes());
  });
}

State read_state(const std::filesystem::path& path, const std::string& kind, std::int64_t version,
                 const std::string& repair, Limits limits) {
  const std::string where = path.string(), what = "a " + without("xlexport ", kind) + "'s state";
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::state, where + ": " + problem + ".", repair);
  };
  State state;
  json::Value value;
  try {
    Budget budget(limits, where, ErrorCode::state);
    SafetensorsFile file = read_safetensors(path, budget);
    const std::string* text = file.metadata.find(kMetadataName);
    value = json::parse(text == nullptr ? "{}" : *text, budget);
    state.tensors = std::move(file.tensors);
  } catch (const Error& error) {
    if (error.code != ErrorCode::state) throw;
    refuse("not " + what + " (" + without(where + ": ", error.message) + ")");
  }
  auto* fields = value.as<json::Object>();
  if (fields == nullptr || !equals(fields->find("kind"), kind)) refuse("a safetensors file, but not " + what);
  if (const json::Value* found = fields->find("version"); !equals(found, version)) {
    refuse("state version " + (found == nullptr ? "None" : shown_value(*found).substr(0, 20)) + ", expected " +
           std::to_string(version));
  }
  if (!is_intact(*fields, state.tensors)) refuse("damaged since it was saved (its SHA-256 differs)");
  fields->erase("kind");
  fields->erase("version");
  state.fields = std::move(*fields);
  return state;
}

}  // namespace xlruntime
