// UTF-8, what the tokenizer of words knows about characters, and hexadecimal digits.
//
// Texts are UTF-8, unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace xlruntime {

// The length in bytes of the well-formed character at the front of `text`; 0 if there is none. Surrogates are not
// well-formed.
std::size_t utf8_length(std::string_view text);

// Whether the byte at `place` is one of a character that begins before it.
bool continues(std::string_view text, std::size_t place);

// Where the character before `place` begins, which is not 0.
std::size_t character_before(std::string_view text, std::size_t place);

// The length in bytes of the character at `place`; at least 1.
std::size_t character_length(std::string_view text, std::size_t place);

// The code point at `place`.
char32_t code_point(std::string_view text, std::size_t place);

void append_utf8(std::string& text, char32_t code);

// The number of characters.
std::size_t count_characters(std::string_view text);

// The first `n` characters.
std::string_view first_characters(std::string_view text, std::size_t n);

// The place of the first byte that is not UTF-8, or npos.
std::size_t first_wrong_byte(std::string_view text);

// The number of bytes at the end of `text` that may be the beginning of a character.
std::size_t unfinished_tail(std::string_view text);

// The text with U+FFFD in place of bytes that are not UTF-8, as Python's errors="replace".
std::string replace_wrong_bytes(std::string_view text);

bool is_space(char32_t code);  // str.isspace
bool is_control(char32_t code);  // commands, marks of order and line ends: categories Cc, Cf, Zl and Zp
std::string lower(std::string_view text);  // str.lower, with the rule of the final sigma

// The digits of bytes, in lower case; and the bytes of such digits, or none if they are others.
std::string hexadecimal(std::string_view bytes);
std::optional<std::string> bytes_of_hexadecimal(std::string_view digits);

}  // namespace xlruntime
