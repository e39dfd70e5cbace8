// Play the actions of a case through the C interface, and return what they give as JSON values.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../src/json.h"
#include "../src/safetensors.h"
#include "xlruntime.h"

namespace conformance {

// An error of the library.
struct Refusal : std::runtime_error {
  explicit Refusal(xlr_status status);

  std::string code;  // its word, such as "bundle_format"
};

// The action asks for something that the C interface cannot say.
struct NotGiven {
  std::string what;
};

// The case needs a tokenizer that the library does not have.
struct NotTried {
  std::string reason;
};

struct Options {
  std::filesystem::path kit, states, keep;
  std::string only, onnxruntime;
  double within = 0;  // nats
  bool kernels = true;
};

// A folder that is removed in the end.
struct TemporaryFolder {
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::filesystem::path path;
};

xlruntime::json::Object read_object(const std::filesystem::path& file);

// Return a field of an object. Throws std::runtime_error if it is missing or has another type.
template <class T>
const T& field(const xlruntime::json::Object& object, const char* name) {
  const xlruntime::json::Value* value = object.find(name);
  const T* found = value == nullptr ? nullptr : value->as<T>();
  if (found == nullptr) throw std::runtime_error(std::string(name) + " is missing or has another type");
  return *found;
}

// One case while it is played: the open bundle, its streams and the states that they have saved.
class Player {
 public:
  explicit Player(const Options& options) : options_(options) {}

  // Run one action, and return what it gives. Throws Refusal, NotGiven or NotTried.
  xlruntime::json::Object play(const xlruntime::json::Object& action);

  const xlr_model* model() const { return model_.get(); }

  // Return the file of a state: one that a stream of this case has saved, or one of the kit.
  std::filesystem::path state(const std::string& name) const;

 private:
  using Object = xlruntime::json::Object;
  using Value = xlruntime::json::Value;
  using Action = Object(const Object& action);
  using Ids = std::vector<std::int64_t>;

  struct Close {
    void operator()(xlr_model* model) const { xlr_model_close(model); }
    void operator()(xlr_stream* stream) const { xlr_stream_close(stream); }
  };
  struct Source {
    bool is_ids;
    Ids ids;
    std::string text;
  };

  Action open, check_answers, encode, decode, score, stream, feed, grow, leave, fork, reset, generate, save, restore;
  Action run;

  Source source(const Object& action, const char* name) const;
  Ids tokens(const Object& action, const char* name) const;
  xlr_settings settings(const Object& action) const;
  const xlr_model_info& info() const;
  std::string lacking() const;
  xlr_stream* opened(const Object& action) const;
  Object saved(const xlr_stream* stream, const std::filesystem::path& file) const;
  Value capacity(const xlr_stream* stream) const;
  Value position(const xlr_stream* stream) const;

  const Options& options_;
  TemporaryFolder work_;  // removed after streams and the model are closed
  std::unique_ptr<xlr_model, Close> model_;
  std::map<std::string, std::unique_ptr<xlr_stream, Close>> streams_;
  int copies_ = 0;
};

}  // namespace conformance
