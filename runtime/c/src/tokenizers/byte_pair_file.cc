#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../safetensors.h"
#include "../unicode.h"
#include "byte_pairs.h"

namespace xlruntime {
namespace {

constexpr std::string_view kMagic("xlbpe\0\0\1", 8);
constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 26;
constexpr std::size_t kLongestToken = 1000;  // bytes
constexpr std::uint32_t kMostItems = 1 << 22, kMostTables = 1 << 16, kMostParts = 4;
constexpr std::uint32_t kIgnoresMerges = 1, kComposed = 2;          // flags of the file
constexpr unsigned char kSpecial = 1, kNormalized = 2;              // flags of an added token
constexpr std::uint32_t kNone = 0xffffffff;

// Reads little-endian numbers, and never beyond the end.
class Bytes {
 public:
  Bytes(std::string_view content, const std::string& where) : rest_(content), where_(where) {}

  Error broken(const std::string& problem) const {
    return Error(XLR_ERROR_VOCABULARY, where_ + ": " + problem + ".", "Convert the checkpoint again.");
  }

  std::string_view take(std::size_t size) {
    if (size > rest_.size()) throw broken("the file ends too early");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::uint32_t number(std::size_t size = 4) {
    std::uint32_t value = 0;
    std::size_t shift = 0;
    for (const char byte : take(size)) {
      value |= std::uint32_t{static_cast<unsigned char>(byte)} << shift;
      shift += 8;
    }
    return value;
  }

  // A number of items of at least `size` bytes each.
  std::uint32_t count(std::uint32_t most) {
    const std::uint32_t found = number();
    if (found > most || found > rest_.size()) {
      throw broken("a table of " + std::to_string(found) + " items, expected at most " + std::to_string(most));
    }
    return found;
  }

  std::string text() {
    const std::uint32_t size = number(2);
    if (size > kLongestToken) {
      throw broken("a token of " + std::to_string(size) + " bytes, expected at most " + std::to_string(kLongestToken));
    }
    return std::string(take(size));
  }

  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  const std::string& where_;
};

void read_tokens(Bytes& bytes, std::int64_t vocab_size, BytePairFile& file) {
  const std::uint32_t size = bytes.count(kMostItems);
  if (size > vocab_size) {
    throw bytes.broken(std::to_string(size) + " tokens, but the model has " + std::to_string(vocab_size));
  }
  for (std::uint32_t id = 0; id < size; ++id) file.tokens.push_back(bytes.text());
  for (std::uint32_t id = 0; id < size; ++id) {  // now they stay where they are
    const std::string& token = file.tokens[id];
    if (!token.empty() && !file.ids.emplace(token, static_cast<std::int32_t>(id)).second) {
      throw bytes.broken("the token " + shown(replace_wrong_bytes(token)) + " occurs more than once");
    }
  }
  for (std::size_t byte = 0; byte < file.bytes.size(); ++byte) {
    const char mark = static_cast<char>(static_cast<unsigned char>(byte));
    const auto found = file.ids.find(std::string_view(&mark, 1));
    const bool is_never = byte == 0xc0 || byte == 0xc1 || byte > 0xf4;  // in UTF-8
    if (found == file.ids.end() && !is_never) throw bytes.broken("no token for the byte " + std::to_string(byte));
    file.bytes[byte] = is_never ? 0 : found->second;
  }
}

void read_merges(Bytes& bytes, BytePairFile& file) {
  const std::uint32_t size = bytes.count(kMostItems);
  file.merges.reserve(size);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    const std::uint32_t left = bytes.number(), right = bytes.number();
    const bool are_ids = left < file.tokens.size() && right < file.tokens.size();
    const bool have_bytes = are_ids && !file.tokens[left].empty() && !file.tokens[right].empty();
    const auto whole = have_bytes ? file.ids.find(file.tokens[left] + file.tokens[right]) : file.ids.end();
    const bool is_new = whole != file.ids.end() &&
                        file.merges.emplace(file.key(left, right), BytePairFile::Merge{rank, whole->second}).second;
    if (!is_new) {
      throw bytes.broken("the merge " + std::to_string(rank) + " makes no token, or occurs more than once");
    }
  }
}

void read_added(Bytes& bytes, BytePairFile& file) {
  const std::uint32_t size = bytes.count(kMostTables);
  for (std::uint32_t i = 0; i < size; ++i) {
    const std::uint32_t id = bytes.number(), flags = bytes.number(1);
    std::string text = bytes.text();
    const bool is_token = id < file.tokens.size() && !text.empty() && first_wrong_byte(text) == std::string_view::npos;
    if (!is_token || flags > (kSpecial | kNormalized)) {
      throw bytes.broken("the added token " + std::to_string(i) + " is none");
    }
    ((flags & kNormalized) != 0 ? file.after : file.before).add(text, id);
    if (!file.added.emplace(id, BytePairFile::Added{std::move(text), (flags & kSpecial) != 0}).second) {
      throw bytes.broken("two added tokens have the id " + std::to_string(id));
    }
  }
  for (SymbolSet* set : {&file.before, &file.after}) {
    const std::string twice = set->finish();
    if (!twice.empty()) throw bytes.broken("the added token " + shown(twice) + " occurs more than once");
  }
}

void read_classes(Bytes& bytes, BytePairFile& file) {
  for (const std::uint8_t kind : {kLetter, kNumber, kSpace}) {
    for (std::uint32_t left = bytes.count(kMostTables); left > 0; --left) {
      const std::uint32_t first = bytes.number(), last = bytes.number();
      file.classes.add({first, last, kind});
    }
  }
  if (!file.classes.finish()) throw bytes.broken("its classes of characters are no separate ranges");
}

ComposedForm read_composed(Bytes& bytes) {
  ComposedForm form;
  bool is_form = true;
  for (std::uint32_t left = bytes.count(kMostTables); left > 0; --left) {
    const std::uint32_t code = bytes.number(), size = bytes.number(1);
    if (size == 0 || size > kMostParts) throw bytes.broken("a decomposition into " + std::to_string(size) + " parts");
    std::u32string parts;
    for (std::uint32_t part = 0; part < size; ++part) parts += bytes.number();
    is_form = form.add(code, parts) && is_form;
  }
  for (std::uint32_t left = bytes.count(kMostTables); left > 0; --left) {
    const std::uint32_t first = bytes.number(), second = bytes.number();
    is_form = form.add(first, second, bytes.number()) && is_form;
  }
  for (std::uint32_t left = bytes.count(kMostTables); left > 0; --left) {
    const std::uint32_t first = bytes.number(), last = bytes.number();
    form.combining.add({first, last, static_cast<std::uint8_t>(bytes.number(1))});
  }
  if (!is_form || !form.combining.finish()) throw bytes.broken("its tables of the form NFC are not those of Unicode");
  return form;
}

}  // namespace

BytePairFile BytePairFile::read(const std::filesystem::path& path, std::int64_t vocab_size) {
  std::error_code failed;
  if (std::filesystem::file_size(path, failed) > kLargestFile && !failed) {
    throw Error(XLR_ERROR_VOCABULARY, path.string() + ": larger than 64 MiB, as no such file is.",
                "Convert the checkpoint again.");
  }
  return from_bytes(read_file(path), path.string(), vocab_size);
}

BytePairFile BytePairFile::from_bytes(std::string_view content, const std::string& where, std::int64_t vocab_size) {
  BytePairFile file;
  Bytes bytes(content, where);
  if (bytes.take(std::min(kMagic.size(), content.size())) != kMagic) {
    throw bytes.broken("not a byte-level BPE of this version");
  }
  const std::uint32_t flags = bytes.number(), unk = bytes.number();
  if (flags > (kIgnoresMerges | kComposed)) throw bytes.broken("it has flags that this runtime does not know");
  file.ignores_merges = (flags & kIgnoresMerges) != 0;
  read_tokens(bytes, vocab_size, file);
  if (unk != kNone && unk >= file.tokens.size()) throw bytes.broken("its unknown token is none of its tokens");
  if (unk != kNone) file.unk = unk;
  read_merges(bytes, file);
  read_added(bytes, file);
  read_classes(bytes, file);
  if ((flags & kComposed) != 0) file.composed = read_composed(bytes);
  if (!bytes.is_at_end()) throw bytes.broken("more bytes than its tables have");
  return file;
}

}  // namespace xlruntime
