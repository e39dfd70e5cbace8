#include "messages.h"

#include <algorithm>
#include <cstdlib>

#include "unicode.h"

namespace xlruntime {

namespace {

constexpr std::size_t kListed = 5, kLongestName = 100, kLongestText = 40, kLongestValue = 100;
// As Python's reprlib cuts values.
constexpr std::size_t kLongestNumber = 40, kLongestInnerText = 30, kMostItems = 6, kMostMembers = 4;
constexpr int kDeepest = 6;

void append_escape(std::string& out, char32_t code) {
  static const char* const digits = "0123456789abcdef";
  const int width = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
  out += width == 2 ? "\\x" : width == 4 ? "\\u" : "\\U";
  for (int shift = 4 * (width - 1); shift >= 0; shift -= 4) out += digits[(code >> shift) & 15];
}

// A character as repr writes it, quotes apart.
void append_character(std::string& out, char32_t code, std::string_view bytes, bool ascii_only) {
  if (code == '\n') {
    out += "\\n";
  } else if (code == '\r') {
    out += "\\r";
  } else if (code == '\t') {
    out += "\\t";
  } else if (is_printable(code) && (code < 0x80 || !ascii_only)) {
    out += bytes;
  } else {
    append_escape(out, code);
  }
}

std::string quoted(std::string_view text, bool ascii_only) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t place = 0; place < text.size();) {
    const char32_t code = code_point(text, place);
    const std::size_t length = character_length(text, place);
    if (code == '\\' || code == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(code);
    } else {
      append_character(out, code, text.substr(place, length), ascii_only);
    }
    place += length;
  }
  return out + quote;
}

// The front and the back of a text that has more than `most` characters.
std::string cut(std::string_view text, std::size_t most) {
  const std::size_t n = count_characters(text);
  if (n <= most) return std::string(text);
  const std::size_t front = (most - 3) / 2, back = most - 3 - front;
  return std::string(first_characters(text, front)) + "..." +
         std::string(text.substr(first_characters(text, n - back).size()));
}

// reprlib.repr of a text.
std::string short_text(std::string_view text) {
  const std::string whole = python_repr(first_characters(text, kLongestInnerText));
  if (count_characters(whole) <= kLongestInnerText) return whole;
  const std::size_t n = count_characters(text), front = (kLongestInnerText - 3) / 2;
  const std::size_t back = kLongestInnerText - 3 - front;
  std::string ends(first_characters(text, front));
  ends += text.substr(first_characters(text, n > back ? n - back : 0).size());
  const std::string outer = python_repr(ends);
  return std::string(first_characters(outer, front)) + "..." +
         std::string(std::string_view(outer).substr(first_characters(outer, count_characters(outer) - back).size()));
}

// reprlib.repr of a value.
std::string short_repr(const json::Value& value, int level) {
  if (value.is_null()) return "None";
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (value.is_integer()) return cut(json::dump(value), kLongestNumber);
  if (value.as<double>() != nullptr) {
    const std::string text = json::dump(value);
    return text == "NaN" ? "nan" : text == "Infinity" ? "inf" : text == "-Infinity" ? "-inf" : text;
  }
  if (const auto* text = value.as<std::string>()) return short_text(*text);
  std::vector<std::string> parts;
  if (const auto* array = value.as<json::Array>()) {
    if (level <= 0 && !array->empty()) return "[...]";
    for (std::size_t i = 0; i < std::min(array->size(), kMostItems); ++i) {
      parts.push_back(short_repr((*array)[i], level - 1));
    }
    if (array->size() > kMostItems) parts.push_back("...");
    return "[" + joined(parts, ", ") + "]";
  }
  const auto& object = *value.as<json::Object>();
  if (level <= 0 && !object.empty()) return "{...}";
  std::vector<const json::Member*> members;
  for (const auto& member : object) members.push_back(&member);
  std::sort(members.begin(), members.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  for (std::size_t i = 0; i < std::min(members.size(), kMostMembers); ++i) {
    parts.push_back(short_repr(json::Value(members[i]->first), level - 1) + ": " +
                    short_repr(members[i]->second, level - 1));
  }
  if (members.size() > kMostMembers) parts.push_back("...");
  return "{" + joined(parts, ", ") + "}";
}

}  // namespace

std::string python_repr(std::string_view text) { return quoted(text, false); }

std::string python_ascii(std::string_view text) { return quoted(text, true); }

std::string shown(std::string_view text) { return python_repr(first_characters(text, kLongestText)); }

std::string shown_value(const json::Value& value) {
  if (const auto* text = value.as<std::string>()) return shown(std::string_view(*text));
  std::string out;  // in ASCII, with single spaces
  const std::string text = short_repr(value, kDeepest);
  for (std::size_t place = 0; place < text.size(); place += character_length(text, place)) {
    const char32_t code = code_point(text, place);
    if (code >= 0x80) {
      append_escape(out, code);
    } else if (code != ' ' || (!out.empty() && out.back() != ' ')) {
      out += static_cast<char>(code);
    }
  }
  return out.substr(0, kLongestValue);
}

std::string named(std::string_view name) {
  if (is_printable(name) && count_characters(name) <= kLongestName) return std::string(name);
  return python_ascii(first_characters(name, kLongestName));
}

std::string one_line(std::string_view text) {
  std::string out;
  for (std::size_t place = 0; place < text.size();) {
    const char32_t code = code_point(text, place);
    const std::size_t length = character_length(text, place);
    append_character(out, code, text.substr(place, length), false);
    place += length;
  }
  return out;
}

std::string with_commas(std::int64_t number) { return grouped(std::to_string(number)); }

std::string grouped(std::string digits) {
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t place = digits.size(); place > first + 3;) {
    place -= 3;
    digits.insert(place, ",");
  }
  return digits;
}

std::string counted(std::int64_t n, std::string_view what) {
  return with_commas(n) + " " + std::string(what) + (n == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string listed(const std::vector<std::string>& items) {
  const std::vector<std::string> first(items.begin(),
                                       items.begin() + static_cast<std::ptrdiff_t>(std::min(items.size(), kListed)));
  const std::size_t more = items.size() - first.size();
  return joined(first, ", ") + (more > 0 ? " and " + with_commas(static_cast<std::int64_t>(more)) + " more" : "");
}

std::string list_of_names(const std::vector<std::string>& names) {
  std::vector<std::string> quoted_names;
  for (const auto& name : names) quoted_names.push_back(python_repr(name));
  return "[" + joined(quoted_names, ", ") + "]";
}

std::string shape_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> parts;
  for (const auto size : sizes) parts.push_back(std::to_string(size));
  return "(" + joined(parts, ", ") + (sizes.size() == 1 ? ",)" : ")");
}

}  // namespace xlruntime
