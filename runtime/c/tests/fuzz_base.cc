// One input for everything that reads files of strangers: the entry point that libFuzzer and fuzz_main.cc call.
//
// The first byte chooses the reader. Beyond sanitizers, it checks what must be true of any input.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../src/bundle.h"
#include "../src/errors.h"
#include "../src/evaluation.h"
#include "../src/json.h"
#include "../src/onnx_tensors.h"
#include "../src/safetensors.h"
#include "../src/tokenizers/byte_pairs.h"
#include "../src/tokenizers/held_text.h"
#include "../src/tokenizers/vocabulary.h"
#include "../src/unicode.h"

namespace {

using namespace xlruntime;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not true: %s\n", what);
  std::abort();
}

void read_manifest(std::string_view text) {
  const Bundle bundle = Bundle::from_json(text, "bundle.json");
  require(bundle.fingerprint.size() == 64, "a fingerprint");
  const EvaluationSettings settings(bundle);
  require(settings.max_segment(settings.capacity()) >= 1, "a step of one token fits");
  for (const MemoryEntry& entry : bundle.memory) require(entry.row_axis < entry.shape.size(), "rows have an axis");
}

void read_graph(std::string_view content) {
  each_external_file(content, [&](std::string_view name) {
    require(name.empty() || (name.data() >= content.data() && name.end() <= content.end()), "a part of the content");
  });
}

void read_tensors(std::string_view content) {
  const Safetensors file = Safetensors::from_bytes(std::string(content), "it", XLR_ERROR_STATE_DAMAGED);
  std::size_t size = 0;
  for (const auto& [name, tensor] : file.tensors) {
    tensor.is_finite();
    size += tensor.data.size();
  }
  require(size == file.data.size(), "tensors are all of the data");
}

TokenPiece read_text(const Tokenizer& tokenizer, std::string_view text, std::size_t size) {
  HeldText growing(tokenizer, "it", HeldText::Unsettled::refuse);
  TokenPiece whole;
  for (; !text.empty(); text.remove_prefix(std::min(size, text.size()))) {
    whole.append(growing.take(text.substr(0, size)));
  }
  whole.append(growing.rest(true));
  return whole;
}

// A vocabulary up to a byte 0, and a text behind it.
void read_vocabulary(std::string_view content) {
  const std::size_t end = std::min(content.find('\0'), content.size());
  const json::Value fields = json::parse(content.substr(0, end), "it", XLR_ERROR_VOCABULARY);
  const auto made = make_vocabulary_tokenizer(Vocabulary::from_json(fields, "it"));
  const Tokenizer& tokenizer = *made;
  const std::string_view text = content.substr(std::min(end + 1, content.size()));
  const TokenPiece whole = read_text(tokenizer, text, content.size() + 1), cut = read_text(tokenizer, text, 1);
  require(whole.ids == cut.ids && whole.starts == cut.starts && whole.ends == cut.ends, "cuts do not matter");
  require(first_wrong_byte(tokenizer.decode(whole.ids)) == std::string_view::npos, "decoded text is UTF-8");
}

// The file of a byte-level BPE after its size in two bytes, and a text behind it. Its tables may be of any characters, so
// cuts matter.
void read_byte_pairs(std::string_view content) {
  if (content.size() < 2) return;
  const std::size_t size = static_cast<unsigned char>(content[0]) | static_cast<unsigned char>(content[1]) << 8;
  const auto tokenizer = make_byte_pair_tokenizer(BytePairFile::from_bytes(content.substr(2, size), "it", 1 << 16));
  const std::string_view text = content.substr(std::min(2 + size, content.size()));
  for (const std::size_t piece : {content.size(), std::size_t{3}}) {
    const TokenPiece tokens = read_text(*tokenizer, text, piece);
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
      const bool is_place = 0 <= tokens.starts[i] && tokens.starts[i] <= tokens.ends[i];
      require(is_place && tokens.ends[i] <= static_cast<std::int64_t>(count_characters(text)), "places are in the text");
    }
    require(first_wrong_byte(tokenizer->decode(tokens.ids)) == std::string_view::npos, "decoded text is UTF-8");
  }
}

constexpr void (*kReaders[])(std::string_view) = {read_manifest, read_graph, read_tensors, read_vocabulary,
                                                  read_byte_pairs};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    kReaders[data[0] % std::size(kReaders)](content);
  } catch (const Error& error) {
    require(first_wrong_byte(error.message) == std::string_view::npos, "messages are UTF-8");
    require(error.message.find('\n') == std::string::npos, "messages are one line");
  }
  return 0;
}
