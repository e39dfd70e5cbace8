// A strict reader of JSON, for files that may come from anybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "errors.h"

namespace xlruntime::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;

// Members in the order of the text; no two have one name.
class Object : public std::vector<Member> {
 public:
  using std::vector<Member>::vector;

  const Value* find(std::string_view name) const;
};

class Value {
 public:
  using Content = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object>;

  Value() : content(nullptr) {}
  template <class T>
  Value(T value) : content(std::move(value)) {}
  Value(const char* text) : content(std::string(text)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(content); }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&content);
  }

  Content content;
};

// Read a text in UTF-8.
//
// Throws `code`: not JSON, two members of one name, a number beyond 64 bits or one that is not finite, more than 64 containers within each other, or more than 4 million values.
Value parse(std::string_view text, const std::string& where, xlr_status code);

std::string quoted(std::string_view text);  // a text as JSON

}  // namespace xlruntime::json
