#include "json_fields.h"

#include <algorithm>

#include "messages.h"
#include "unicode.h"

namespace xlruntime {

namespace {

constexpr std::size_t kLongestPart = 40;  // characters of a name within a path

bool is_identifier(const std::string& name) {
  const auto is_letter = [](char mark) {
    return (mark >= 'a' && mark <= 'z') || (mark >= 'A' && mark <= 'Z') || mark == '_';
  };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char mark) {
    return is_letter(mark) || (mark >= '0' && mark <= '9');
  });
}

}  // namespace

std::string Problems::text() const {
  const std::size_t more = count_ - first_.size();
  return joined(first_, "; ") + (more > 0 ? "; and " + std::to_string(more) + " more" : "");
}

std::int64_t clamped(const json::Value& value) {
  if (const auto* large = value.as<json::LargeNumber>()) return large->digits[0] == '-' ? -kBeyond : kBeyond;
  return std::clamp(*value.as<std::int64_t>(), -kBeyond, kBeyond);
}

std::string inner_place(const std::string& where, const std::string& name) {
  const std::string known = is_identifier(name) ? name : python_ascii(name).substr(0, kLongestPart);
  return where.empty() ? known.substr(0, kLongestPart) : where + "." + known;
}

void FieldReader::refuse(const json::Value& value, const std::string& where, std::string_view expected) {
  const std::string found = value.as<json::Object>() != nullptr  ? "an object"
                            : value.as<json::Array>() != nullptr ? "a list"
                                                                 : shown_value(value);
  problems_.add((where.empty() ? "it" : where) + " is " + found + ", expected " + std::string(expected));
}

bool FieldReader::object(const json::Value& value, const std::string& where, const std::vector<Field>& fields) {
  const auto* object = value.as<json::Object>();
  if (object == nullptr) {
    refuse(value, where, "an object");
    return false;
  }
  const std::size_t before = problems_.count();
  const auto known = [&fields](std::string_view name) {
    return std::find_if(fields.begin(), fields.end(), [name](const Field& field) { return field.name == name; });
  };
  for (const Field& field : fields) {
    if (field.needed && object->find(field.name) == nullptr) {
      problems_.add(inner_place(where, field.name) + " is missing");
    }
  }
  for (const auto& [name, part] : *object) {
    if (known(name) == fields.end()) problems_.add(inner_place(where, name) + " is unknown");
  }
  for (const auto& [name, part] : *object) {
    if (const auto field = known(name); field != fields.end()) field->read(part, inner_place(where, name));
  }
  return problems_.count() == before;
}

void FieldReader::each_member(
    const json::Value& value, const std::string& where,
    const std::function<void(const std::string&, const json::Value&, const std::string&)>& read) {
  const auto* object = value.as<json::Object>();
  if (object == nullptr) return refuse(value, where, "an object");
  for (const auto& [name, part] : *object) read(name, part, inner_place(where, name));
}

void FieldReader::each_item(const json::Value& value, const std::string& where,
                            const std::function<void(const json::Value&, const std::string&)>& read) {
  const auto* array = value.as<json::Array>();
  if (array == nullptr) return refuse(value, where, "a list");
  for (std::size_t i = 0; i < array->size(); ++i) read((*array)[i], where + "[" + std::to_string(i) + "]");
}

Field FieldReader::text(const char* name, std::string& into) {
  return {name, true, [this, &into](const json::Value& value, const std::string& where) {
            const auto* text = value.as<std::string>();
            if (text == nullptr) return refuse(value, where, "text");
            into = *text;
          }};
}

Field FieldReader::optional_text(const char* name, std::optional<std::string>& into, bool needed) {
  return {name, needed, [this, &into](const json::Value& value, const std::string& where) {
            const auto* text = value.as<std::string>();
            if (text == nullptr && !value.is_null()) return refuse(value, where, "text or null");
            into = text == nullptr ? std::nullopt : std::optional(*text);
          }};
}

Field FieldReader::integer(const char* name, std::int64_t& into, bool needed) {
  return {name, needed, [this, &into](const json::Value& value, const std::string& where) {
            if (!value.is_integer()) return refuse(value, where, "a whole number");
            into = clamped(value);
          }};
}

Field FieldReader::optional_integer(const char* name, std::optional<std::int64_t>& into, bool needed) {
  return {name, needed, [this, &into](const json::Value& value, const std::string& where) {
            if (!value.is_integer() && !value.is_null()) return refuse(value, where, "a whole number or null");
            into = value.is_null() ? std::nullopt : std::optional(clamped(value));
          }};
}

Field FieldReader::boolean(const char* name, bool& into) {
  return {name, false, [this, &into](const json::Value& value, const std::string& where) {
            const auto* flag = value.as<bool>();
            if (flag == nullptr) return refuse(value, where, "true or false");
            into = *flag;
          }};
}

Field FieldReader::any_object(const char* name, json::Object& into) {
  return {name, true, [this, &into](const json::Value& value, const std::string& where) {
            const auto* object = value.as<json::Object>();
            if (object == nullptr) return refuse(value, where, "an object");
            into = *object;
          }};
}

Field FieldReader::choice(const char* name, std::size_t& into, std::vector<const char*> choices, bool needed) {
  return {name, needed, [this, &into, choices](const json::Value& value, const std::string& where) {
            const auto* text = value.as<std::string>();
            std::vector<std::string> quoted;
            for (std::size_t i = 0; i < choices.size(); ++i) {
              if (text != nullptr && *text == choices[i]) {
                into = i;
                return;
              }
              quoted.push_back(python_repr(choices[i]));
            }
            refuse(value, where, joined(quoted, " or "));
          }};
}

}  // namespace xlruntime
