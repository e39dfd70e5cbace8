// Byte-level BPE as GPT-2 has it, without a library.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "character_tables.h"
#include "symbol_set.h"
#include "tokenizer.h"

namespace xlruntime {

// Its file: tokens, merges, added tokens and tables of characters (xlexport/byte_pair_file.py).
struct BytePairFile {
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;  // of the merged token
  };
  struct Added {
    std::string text;
    bool is_special;  // it is not part of decoded text
  };

  bool ignores_merges = false;  // whether a piece that is a token is one, whatever the merges say
  std::optional<std::int64_t> unk;
  std::vector<std::string> tokens;                       // bytes by id; empty: an id that only an added token may have
  std::unordered_map<std::string_view, std::int32_t> ids;  // of the bytes, which are in `tokens`
  std::array<std::int32_t, 256> bytes{};                 // the token of each byte of UTF-8
  std::unordered_map<std::uint64_t, Merge> merges;       // by the ids of both parts
  std::unordered_map<std::int64_t, Added> added;         // by id
  SymbolSet before, after;                               // added tokens found before and after normalization
  CharacterRanges classes;
  std::optional<ComposedForm> composed;  // none: texts stay as they are

  static std::uint64_t key(std::int64_t left, std::int64_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
  }

  // Throws XLR_ERROR_VOCABULARY: the file is not one, or has ids beyond `vocab_size`.
  static BytePairFile read(const std::filesystem::path& path, std::int64_t vocab_size);
  static BytePairFile from_bytes(std::string_view content, const std::string& where, std::int64_t vocab_size);
};

std::unique_ptr<Tokenizer> make_byte_pair_tokenizer(BytePairFile file);

}  // namespace xlruntime
