// JSON as Python's `json` reads and writes it: numbers of any size, NaN, and half surrogates in escapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "read_limits.h"

namespace xlruntime::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;

// Members in the order of the text. Of several with one name, the last value is at the place of the first.
class Object {
 public:
  std::vector<Member> members;

  const Value* find(std::string_view name) const;
  bool erase(std::string_view name);
  void add(std::string name, Value value);
  std::size_t size() const { return members.size(); }
  bool empty() const { return members.empty(); }
  auto begin() const { return members.begin(); }
  auto end() const { return members.end(); }
};

// A whole number that does not fit 64 bits: its digits, with a sign if it is negative.
struct LargeNumber {
  std::string digits;
};

class Value {
 public:
  using Content = std::variant<std::nullptr_t, bool, std::int64_t, LargeNumber, double, std::string, Array, Object>;

  Value() : content(nullptr) {}
  Value(std::nullptr_t) : content(nullptr) {}
  Value(bool value) : content(value) {}
  Value(int value) : content(static_cast<std::int64_t>(value)) {}
  Value(std::int64_t value) : content(value) {}
  Value(double value) : content(value) {}
  Value(const char* value) : content(std::string(value)) {}
  Value(std::string value) : content(std::move(value)) {}
  Value(std::string_view value) : content(std::string(value)) {}
  Value(LargeNumber value) : content(std::move(value)) {}
  Value(Array value) : content(std::move(value)) {}
  Value(Object value) : content(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(content); }
  bool is_integer() const { return as<std::int64_t>() != nullptr || as<LargeNumber>() != nullptr; }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&content);
  }
  template <class T>
  T* as() {
    return std::get_if<T>(&content);
  }

  Content content;
};

// Read a text in UTF-8, which may begin with a byte-order mark; count its values as Python's runtime does.
//
// Throws the budget's error: the values exceed the budget, or the text is not JSON.
Value parse(std::string_view text, Budget& budget);

enum class Order { as_given, sorted };
enum class Layout { spaced, compact };  // ", " and ": ", or "," and ":"

// What `json.dumps` writes, all in ASCII.
std::string dump(const Value& value, Order order = Order::as_given, Layout layout = Layout::spaced);

}  // namespace xlruntime::json
