// The fields of an object of bundle.json or vocabulary.json, of which each must be read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "errors.h"
#include "json.h"

namespace xlruntime {

inline constexpr const char* kConvertAgain = "Convert the checkpoint again with xlexport convert.";

class Fields {
 public:
  // `code` is that of errors.
  Fields(const json::Value& value, std::string where, xlr_status code = XLR_ERROR_BUNDLE_FORMAT)
      : where_(std::move(where)), object_(value.as<json::Object>()), code_(code) {
    if (object_ == nullptr) throw error("expected an object");
  }

  const std::string& where() const { return where_; }
  std::string place(std::string_view name) const { return where_ + " " + shown(name); }
  Error error(const std::string& problem) const { return Error(code_, where_ + ": " + problem + ".", kConvertAgain); }
  const json::Object& all() const { return *object_; }

  const json::Value& value(const char* name) {
    const json::Value* found = object_->find(name);
    if (found == nullptr) throw error(std::string("the field '") + name + "' is missing");
    read_.insert(name);
    return *found;
  }

  // Whether a field that may be absent has a value.
  bool has(const char* name) { return object_->find(name) != nullptr && !value(name).is_null(); }

  template <class T>
  const T& get(const char* name, const char* kind) {
    const T* found = value(name).template as<T>();
    if (found == nullptr) throw error(std::string("'") + name + "' is not " + kind);
    return *found;
  }

  const std::string& text(const char* name) { return get<std::string>(name, "a text"); }
  bool boolean(const char* name) { return get<bool>(name, "true or false"); }
  const json::Array& list(const char* name) { return get<json::Array>(name, "a list"); }
  Fields object(const char* name) { return Fields(value(name), place(name)); }

  std::int64_t integer(const char* name, std::int64_t least, std::int64_t most) {
    const std::int64_t number = get<std::int64_t>(name, "a whole number");
    if (number >= least && number <= most) return number;
    throw error(std::string("'") + name + "' is " + std::to_string(number) + ", expected " + std::to_string(least) +
                " to " + std::to_string(most));
  }

  std::optional<std::string> text_or_null(const char* name) {
    return value(name).is_null() ? std::nullopt : std::optional(text(name));
  }
  std::optional<std::int64_t> integer_or_null(const char* name, std::int64_t least, std::int64_t most) {
    return value(name).is_null() ? std::nullopt : std::optional(integer(name, least, most));
  }

  // The place of a text among choices.
  template <std::size_t n>
  std::size_t choice(const char* name, const char* const (&choices)[n]) {
    const std::string& found = text(name);
    const auto place = std::find(std::begin(choices), std::end(choices), found);
    if (place == std::end(choices)) {
      throw error(std::string("'") + name + "' is " + shown(found) + ", expected " +
                  joined({std::begin(choices), std::end(choices)}, " or "));
    }
    return static_cast<std::size_t>(place - std::begin(choices));
  }

  void end() const {
    for (const auto& [name, unused] : *object_) {
      if (read_.count(name) == 0) throw error("the field " + shown(name) + " is unknown");
    }
  }

 private:
  std::string where_;
  const json::Object* object_;
  xlr_status code_;
  std::set<std::string> read_;
};

}  // namespace xlruntime
