#include "json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <locale>
#include <sstream>
#include <unordered_set>

#include "unicode.h"

namespace xlruntime::json {
namespace {

constexpr int kDeepest = 64;             // containers within each other
constexpr std::size_t kMostValues = 4'000'000;

class Parser {
 public:
  Parser(std::string_view text, const std::string& where, xlr_status code) : text_(text), where_(where), code_(code) {}

  Value read() {
    if (const std::size_t wrong = first_wrong_byte(text_); wrong != std::string_view::npos) {
      place_ = wrong;
      fail("not UTF-8");
    }
    Value value = read_value(0);
    skip_space();
    if (place_ < text_.size()) fail("more text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(code_, where_ + ": not valid JSON (" + problem + " at byte " + std::to_string(place_) + ").");
  }

  void skip_space() {
    while (place_ < text_.size() && std::string_view(" \t\n\r").find(text_[place_]) != std::string_view::npos) ++place_;
  }

  char peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }

  bool take(std::string_view word) {
    if (text_.substr(place_, word.size()) != word) return false;
    place_ += word.size();
    return true;
  }

  Value read_value(int depth) {
    if (++values_ > kMostValues) fail("too many values");
    if (depth > kDeepest) fail("too many values within each other");
    skip_space();
    if (peek() == '{') return read_object(depth);
    if (peek() == '[') return read_array(depth);
    if (peek() == '"') return read_text();
    if (take("null")) return nullptr;
    if (take("true")) return true;
    if (take("false")) return false;
    return read_number();
  }

  Value read_object(int depth) {
    Object object;
    ++place_;
    skip_space();
    if (take("}")) return object;
    do {
      skip_space();
      if (peek() != '"') fail("expected a name in quotes");
      std::string name = read_text();
      skip_space();
      if (!take(":")) fail("expected ':'");
      object.emplace_back(std::move(name), read_value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("}")) fail("expected ',' or '}'");
    std::unordered_set<std::string_view> names;
    for (const Member& member : object) {
      if (!names.insert(member.first).second) fail("two members " + shown(member.first));
    }
    return object;
  }

  Value read_array(int depth) {
    Array array;
    ++place_;
    skip_space();
    if (take("]")) return array;
    do {
      array.push_back(read_value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("]")) fail("expected ',' or ']'");
    return array;
  }

  std::string read_text() {
    std::string text;
    for (++place_;;) {
      const std::size_t begin = place_;
      while (place_ < text_.size() && text_[place_] != '"' && text_[place_] != '\\' &&
             static_cast<unsigned char>(text_[place_]) >= 0x20) {
        ++place_;
      }
      text.append(text_.substr(begin, place_ - begin));
      if (take("\"")) return text;
      if (!take("\\")) fail("a text without end, or a control character in it");
      read_escape(text);
    }
  }

  void read_escape(std::string& text) {
    constexpr std::string_view kMarks = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const std::size_t known = kMarks.find(peek()); peek() != '\0' && known != std::string_view::npos) {
      text += kMeant[known];
      ++place_;
      return;
    }
    if (!take("u")) fail("an unknown escape");
    char32_t code = read_hexadecimal();
    if (code >= 0xd800 && code < 0xe000) {
      const char32_t low = code < 0xdc00 && take("\\u") ? read_hexadecimal() : 0;
      if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(text, code);
  }

  char32_t read_hexadecimal() {
    const std::string_view digits = text_.substr(place_, 4);
    unsigned code = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || problem != std::errc() || end != digits.data() + 4) fail("an escape without four digits");
    place_ += 4;
    return code;
  }

  std::size_t digits() {
    const std::size_t begin = place_;
    while (peek() >= '0' && peek() <= '9') ++place_;
    return place_ - begin;
  }

  Value read_number() {
    const std::size_t begin = place_;
    take("-");
    bool is_whole = true;
    if (!take("0") && digits() == 0) fail("expected a value");
    if (take(".")) {
      is_whole = false;
      if (digits() == 0) fail("a number without digits after the point");
    }
    if (take("e") || take("E")) {
      is_whole = false;
      if (!take("-")) take("+");
      if (digits() == 0) fail("a number without digits in the exponent");
    }
    const std::string_view text = text_.substr(begin, place_ - begin);
    std::int64_t whole = 0;
    if (is_whole) {
      if (std::from_chars(text.data(), text.data() + text.size(), whole).ec == std::errc()) return whole;
      fail("a whole number beyond 64 bits");
    }
    std::istringstream stream{std::string(text)};  // not strtod, which follows the locale of the application
    stream.imbue(std::locale::classic());
    double number = 0;
    stream >> number;
    if (stream.fail() && std::abs(number) > 1) fail("a number that is not finite");  // not one that rounds to zero
    return number;
  }

  std::string_view text_;
  const std::string& where_;
  const xlr_status code_;
  std::size_t place_ = 0, values_ = 0;
};

}  // namespace

const Value* Object::find(std::string_view name) const {
  const auto member = std::find_if(begin(), end(), [name](const Member& each) { return each.first == name; });
  return member == end() ? nullptr : &member->second;
}

Value parse(std::string_view text, const std::string& where, xlr_status code) {
  return Parser(text, where, code).read();
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char mark : text) {
    char escape[8];
    if (mark == '"' || mark == '\\') {
      out += {'\\', mark};
    } else if (static_cast<unsigned char>(mark) < 0x20) {
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(mark));
      out += escape;
    } else {
      out += mark;
    }
  }
  return out + '"';
}

}  // namespace xlruntime::json
