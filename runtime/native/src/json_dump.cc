// What Python's `json.dumps` writes: a digest over it must not depend on the language.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "json.h"
#include "unicode.h"

namespace xlruntime::json {

namespace {

// The shortest digits that give the same number, as Python's repr.
std::string written(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));  // -1.2345e-07
  std::string result;
  if (text.front() == '-') {
    result = "-";
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  std::string digits(text.substr(0, mark));
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  const std::string_view power = text.substr(mark + 1);
  int exponent = 0;
  std::from_chars(power.data() + (power.front() == '+' ? 1 : 0), power.data() + power.size(), exponent);
  const int point = exponent + 1;  // digits in front of the decimal point
  const auto n = static_cast<int>(digits.size());
  if (point <= -4 || point > 16) {
    const std::string size = std::to_string(std::abs(exponent));
    return result + digits[0] + (n > 1 ? "." + digits.substr(1) : "") + (exponent < 0 ? "e-" : "e+") +
           (size.size() < 2 ? "0" : "") + size;
  }
  if (point <= 0) return result + "0." + std::string(static_cast<std::size_t>(-point), '0') + digits;
  if (point >= n) return result + digits + std::string(static_cast<std::size_t>(point - n), '0') + ".0";
  const auto place = static_cast<std::size_t>(point);
  return result + digits.substr(0, place) + "." + digits.substr(place);
}

void append_escape(std::string& out, char32_t code) {
  static const char* const digits = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += digits[(code >> shift) & 15];
}

void append_text(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t place = 0; place < text.size();) {
    const char32_t code = code_point(text, place);
    place += character_length(text, place);
    switch (code) {
      case '"': out += "\\\""; continue;
      case '\\': out += "\\\\"; continue;
      case '\n': out += "\\n"; continue;
      case '\r': out += "\\r"; continue;
      case '\t': out += "\\t"; continue;
      case '\f': out += "\\f"; continue;
      case '\b': out += "\\b"; continue;
      default: break;
    }
    if (code >= ' ' && code <= '~') {
      out += static_cast<char>(code);
    } else if (code < 0x10000) {
      append_escape(out, code);
    } else {
      append_escape(out, 0xd800 + ((code - 0x10000) >> 10));
      append_escape(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
    }
  }
  out += '"';
}

class Writer {
 public:
  Writer(std::string& out, Order order, Layout layout)
      : out_(out),
        order_(order),
        comma_(layout == Layout::spaced ? ", " : ","),
        colon_(layout == Layout::spaced ? ": " : ":") {}

  void write(const Value& value) {
    std::visit([this](const auto& content) { write_content(content); }, value.content);
  }

 private:
  void write_content(std::nullptr_t) { out_ += "null"; }
  void write_content(bool value) { out_ += value ? "true" : "false"; }
  void write_content(std::int64_t value) { out_ += std::to_string(value); }
  void write_content(const LargeNumber& value) { out_ += value.digits; }
  void write_content(double value) { out_ += written(value); }
  void write_content(const std::string& value) { append_text(out_, value); }

  void write_content(const Array& array) {
    out_ += '[';
    const char* separator = "";
    for (const Value& value : array) {
      out_ += separator;
      write(value);
      separator = comma_;
    }
    out_ += ']';
  }

  void write_content(const Object& object) {
    std::vector<const Member*> members;
    for (const Member& member : object) members.push_back(&member);
    if (order_ == Order::sorted) {  // the order of bytes of UTF-8 is that of code points
      std::sort(members.begin(), members.end(), [](const Member* a, const Member* b) { return a->first < b->first; });
    }
    out_ += '{';
    const char* separator = "";
    for (const Member* member : members) {
      out_ += separator;
      append_text(out_, member->first);
      out_ += colon_;
      write(member->second);
      separator = comma_;
    }
    out_ += '}';
  }

  std::string& out_;
  Order order_;
  const char *comma_, *colon_;
};

}  // namespace

std::string dump(const Value& value, Order order, Layout layout) {
  std::string out;
  Writer(out, order, layout).write(value);
  return out;
}

}  // namespace xlruntime::json
