// Read the fields of JSON objects strictly, and report every value of the wrong type, as Python's runtime does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace xlruntime {

// The first few problems of a file, and how many there are.
class Problems {
 public:
  void add(std::string problem) {
    if (count_++ < kListed) first_.push_back(std::move(problem));
  }
  std::size_t count() const { return count_; }
  std::string text() const;

 private:
  static constexpr std::size_t kListed = 5;
  std::vector<std::string> first_;
  std::size_t count_ = 0;
};

// One field of an object: its name, whether it must be there, and what reads its value at the place `where`.
struct Field {
  const char* name;
  bool needed;
  std::function<void(const json::Value& value, const std::string& where)> read;
};

// Numbers beyond this are read as this: no field may be as large, and adding to it does not overflow.
inline constexpr std::int64_t kBeyond = (std::int64_t{1} << 62) + 1;

class FieldReader {
 public:
  explicit FieldReader(Problems& problems) : problems_(problems) {}

  // Read an object. Return whether no field has a problem; if so, the caller checks what the fields say together.
  bool object(const json::Value& value, const std::string& where, const std::vector<Field>& fields);

  // Read the members or items of a container one by one.
  void each_member(const json::Value& value, const std::string& where,
                   const std::function<void(const std::string& name, const json::Value&, const std::string&)>& read);
  void each_item(const json::Value& value, const std::string& where,
                 const std::function<void(const json::Value&, const std::string&)>& read);

  // Each makes a field that is read into `into`, which must outlive the field.
  Field text(const char* name, std::string& into);
  Field optional_text(const char* name, std::optional<std::string>& into, bool needed);
  Field integer(const char* name, std::int64_t& into, bool needed = true);
  Field optional_integer(const char* name, std::optional<std::int64_t>& into, bool needed);
  Field boolean(const char* name, bool& into);  // with a default
  Field any_object(const char* name, json::Object& into);
  Field choice(const char* name, std::size_t& into, std::vector<const char*> choices, bool needed);

  void refuse(const json::Value& value, const std::string& where, std::string_view expected);
  void refuse(const std::string& problem) { problems_.add(problem); }

 private:
  Problems& problems_;
};

// A whole number, cut to kBeyond.
std::int64_t clamped(const json::Value& value);

// A field's path for messages: "graphs.score.inputs".
std::string inner_place(const std::string& where, const std::string& name);

}  // namespace xlruntime
