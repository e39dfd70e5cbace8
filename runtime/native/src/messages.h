// Parts of messages in one short line, as Python's runtime formats them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace xlruntime {

std::string python_repr(std::string_view text);   // repr of a str
std::string python_ascii(std::string_view text);  // ascii of a str

std::string shown(std::string_view text);      // a text, cut if it is long, in quotes
std::string shown_value(const json::Value& value); // a value of any kind, cut if it is long
std::string named(std::string_view name);      // a name from a file, without quotes
std::string one_line(std::string_view text);   // characters that a terminal cannot show become escapes
std::string with_commas(std::int64_t number);  // 1,234,567
std::string grouped(std::string digits);       // the same, of a number in digits
std::string counted(std::int64_t n, std::string_view what);  // "1 node", "2 nodes"
std::string joined(const std::vector<std::string>& parts, std::string_view separator);
std::string listed(const std::vector<std::string>& items);  // the first five, and how many more
std::string list_of_names(const std::vector<std::string>& names);  // ['a', 'b'], as Python prints a list of str
std::string shape_of(const std::vector<std::int64_t>& sizes);      // (1, 2), as Python prints a tuple

}  // namespace xlruntime
