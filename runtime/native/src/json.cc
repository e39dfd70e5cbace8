#include "json.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <locale>
#include <numeric>
#include <sstream>

#include "unicode.h"

namespace xlruntime::json {

namespace {

// What Python's values take, with the place in their container.
constexpr std::int64_t kArrayBytes = 72, kObjectBytes = 232, kValueBytes = 100;
constexpr int kDeepest = 900;             // values within each other; Python's reader takes slightly more
constexpr std::size_t kLongestNumber = 4300;  // digits of a whole number, as in Python

struct SyntaxError {
  std::string problem;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Value read() {
    Value value = read_value(0);
    skip_space();
    if (place_ < text_.size()) fail("more text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(place_), '\n');
    throw SyntaxError{problem + ": line " + std::to_string(line) + ", byte " + std::to_string(place_)};
  }

  void skip_space() {
    while (place_ < text_.size() && std::strchr(" \t\n\r", text_[place_]) != nullptr && text_[place_] != '\0') ++place_;
  }

  char peek() const { return place_ < text_.size() ? text_[place_] : '\0'; }

  bool take(std::string_view word) {
    if (text_.substr(place_, word.size()) != word) return false;
    place_ += word.size();
    return true;
  }

  Value read_value(int depth) {
    if (depth > kDeepest) fail("too many values within each other");
    skip_space();
    switch (peek()) {
      case '{': return read_object(depth);
      case '[': return read_array(depth);
      case '"': return read_text();
      default: break;
    }
    if (take("null")) return nullptr;
    if (take("true")) return true;
    if (take("false")) return false;
    if (take("NaN")) return std::numeric_limits<double>::quiet_NaN();
    if (take("Infinity")) return std::numeric_limits<double>::infinity();
    if (take("-Infinity")) return -std::numeric_limits<double>::infinity();
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
      object.members.emplace_back(std::move(name), read_value(depth + 1));
      skip_space();
    } while (take(","));
    if (!take("}")) fail("expected ',' or '}'");
    merge_equal_names(object);
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

  // Of members with one name, keep the last value, at the place of the first.
  static void merge_equal_names(Object& object) {
    auto& members = object.members;
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return members[a].first < members[b].first; });
    std::vector<bool> dropped(members.size());
    for (std::size_t first = 0, next; first < order.size(); first = next) {
      next = first + 1;
      while (next < order.size() && members[order[next]].first == members[order[first]].first) {
        dropped[order[next++]] = true;
      }
      if (next > first + 1) members[order[first]].second = std::move(members[order[next - 1]].second);
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (dropped[i]) continue;
      if (kept != i) members[kept] = std::move(members[i]);
      ++kept;
    }
    members.resize(kept);
  }

  std::string read_text() {
    std::string text;
    ++place_;
    for (;;) {
      const std::size_t begin = place_;
      while (place_ < text_.size() && text_[place_] != '"' && text_[place_] != '\\' &&
             static_cast<unsigned char>(text_[place_]) >= 0x20) {
        ++place_;
      }
      text.append(text_.substr(begin, place_ - begin));
      if (place_ >= text_.size()) fail("a text without end");
      if (text_[place_] == '"') {
        ++place_;
        return text;
      }
      if (text_[place_] != '\\') fail("a control character in a text");
      ++place_;
      read_escape(text);
    }
  }

  void read_escape(std::string& text) {
    const char mark = peek();
    ++place_;
    switch (mark) {
      case '"': case '\\': case '/': text += mark; return;
      case 'b': text += '\b'; return;
      case 'f': text += '\f'; return;
      case 'n': text += '\n'; return;
      case 'r': text += '\r'; return;
      case 't': text += '\t'; return;
      case 'u': break;
      default: --place_; fail("an unknown escape");
    }
    char32_t code = read_hexadecimal();
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(place_, 2) == "\\u") {
      const std::size_t before = place_;
      place_ += 2;
      const char32_t low = read_hexadecimal();
      if (low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else {
        place_ = before;
      }
    }
    append_utf8(text, code);
  }

  char32_t read_hexadecimal() {
    char32_t code = 0;
    for (int i = 0; i < 4; ++i, ++place_) {
      const char mark = peek();
      const int digit = mark >= '0' && mark <= '9'   ? mark - '0'
                        : mark >= 'a' && mark <= 'f' ? mark - 'a' + 10
                        : mark >= 'A' && mark <= 'F' ? mark - 'A' + 10
                                                     : -1;
      if (digit < 0) fail("an escape without four hexadecimal digits");
      code = code * 16 + static_cast<char32_t>(digit);
    }
    return code;
  }

  std::size_t digits_from(std::size_t place) const {
    while (place < text_.size() && text_[place] >= '0' && text_[place] <= '9') ++place;
    return place;
  }

  Value read_number() {
    const std::size_t begin = place_;
    std::size_t end = begin + (peek() == '-' ? 1 : 0);
    const std::size_t first = end;
    end = end < text_.size() && text_[end] == '0' ? end + 1 : digits_from(end);
    if (end == first) fail("expected a value");
    bool whole = true;
    if (end < text_.size() && text_[end] == '.' && digits_from(end + 1) > end + 1) {
      end = digits_from(end + 1);
      whole = false;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const bool sign = end + 1 < text_.size() && (text_[end + 1] == '-' || text_[end + 1] == '+');
      const std::size_t power = end + 1 + (sign ? 1 : 0);
      if (digits_from(power) > power) {
        end = digits_from(power);
        whole = false;
      }
    }
    const std::string digits(text_.substr(begin, end - begin));
    if (whole && end - first > kLongestNumber) fail("a number of too many digits");
    place_ = end;
    return whole ? whole_number(digits) : Value(floating_number(digits));
  }

  static Value whole_number(const std::string& digits) {
    const bool negative = digits[0] == '-';
    std::uint64_t value = 0;
    const std::uint64_t most = std::uint64_t{std::numeric_limits<std::int64_t>::max()} + (negative ? 1 : 0);
    for (const char mark : std::string_view(digits).substr(negative ? 1 : 0)) {
      const auto digit = static_cast<std::uint64_t>(mark - '0');
      if (value > (most - digit) / 10) return LargeNumber{digits};
      value = value * 10 + digit;
    }
    return static_cast<std::int64_t>(negative ? ~value + 1 : value);
  }

  // Not strtod, which follows the locale of the application.
  static double floating_number(const std::string& digits) {
    std::istringstream stream(digits);
    stream.imbue(std::locale::classic());
    double value = 0;
    stream >> value;
    using Double = std::numeric_limits<double>;
    if (stream.fail() && (value >= Double::max() || value <= Double::lowest())) {
      return value < 0 ? -Double::infinity() : Double::infinity();
    }
    return value;
  }

  std::string_view text_;
  std::size_t place_ = 0;
};

}  // namespace

const Value* Object::find(std::string_view name) const {
  for (const auto& [known, value] : members) {
    if (known == name) return &value;
  }
  return nullptr;
}

bool Object::erase(std::string_view name) {
  for (auto member = members.begin(); member != members.end(); ++member) {
    if (member->first != name) continue;
    members.erase(member);
    return true;
  }
  return false;
}

void Object::add(std::string name, Value value) { members.emplace_back(std::move(name), std::move(value)); }

Value parse(std::string_view text, Budget& budget) {
  std::int64_t arrays = 0, objects = 0, others = 0;
  for (const char mark : text) {  // within texts too, which only makes the bound stricter
    arrays += mark == '[';
    objects += mark == '{';
    others += mark == ',' || mark == ':';
  }
  const auto size = static_cast<std::int64_t>(text.size());
  budget.charge(kArrayBytes * arrays + kObjectBytes * objects + kValueBytes * others + 2 * size,
                arrays + objects + others);
  if (const std::size_t wrong = first_wrong_byte(text); wrong != std::string_view::npos) {
    throw budget.damaged("not valid JSON (byte " + std::to_string(wrong) + " is not UTF-8)");
  }
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  try {
    return Parser(text).read();
  } catch (const SyntaxError& error) {
    throw budget.damaged("not valid JSON (" + error.problem + ")");
  }
}

}  // namespace xlruntime::json
