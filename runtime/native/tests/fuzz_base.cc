// One input for everything that reads files of strangers: the entry point that libFuzzer and fuzz_main.cc call.
//
// The first byte chooses the reader. Beyond sanitizers, it checks what must be true of any input.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../src/error.h"
#include "../src/graph_gate.h"
#include "../src/manifest.h"
#include "../src/safetensors.h"
#include "../src/state_file.h"
#include "../src/tokenizers/text_walk.h"
#include "../src/tokenizers/vocabulary_tokenizer.h"
#include "../src/unicode.h"

namespace {

using namespace xlruntime;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not true: %s\n", what);
  std::abort();
}

void read_json(std::string_view text) {
  Budget budget({std::int64_t{1} << 26, 1'000'000}, "it", ErrorCode::bundle);
  const std::string written = json::dump(json::parse(text, budget), json::Order::sorted);
  require(json::dump(json::parse(written, budget), json::Order::sorted) == written, "written JSON reads as it was");
}

void read_manifest(std::string_view text) {
  const Bundle bundle = Bundle::from_json(text, "bundle.json");
  bundle.fingerprint();
  for (const auto& [purpose, graph] : bundle.graphs) graph.metadata(bundle.memory);
  const EvaluationSettings settings = bundle.evaluation.choose();
  require(settings.max_segment(settings.capacity()) >= 1, "a step of one token fits");
}

void read_graph(std::string_view content) {
  NamedList<FileDigest> files;
  files.add("weights.data", {});
  for (const std::string& name : check_graph(content, "it.onnx", files)) require(name == "weights.data", "listed");
}

void read_state_file(std::string_view content) {
  static const std::string path = "/tmp/fuzz_base." + std::to_string(getpid());
  std::FILE* file = std::fopen(path.c_str(), "wb");
  require(file != nullptr, "the temporary file opens");
  std::fwrite(content.data(), 1, content.size(), file);
  std::fclose(file);
  try {
    Budget budget({}, path, ErrorCode::state);
    for (const auto& [name, tensor] : read_safetensors(path, budget).tensors) tensor.is_finite();
    read_state(path, "xlexport stream", 2, "");
  } catch (const Error&) {
    std::remove(path.c_str());
    throw;
  }
  std::remove(path.c_str());
}

TokenPiece read_text(const Tokenizer& tokenizer, std::string_view text, std::size_t size) {
  const auto reader = tokenizer.read("it");
  TokenPiece whole;
  for (; !text.empty(); text.remove_prefix(std::min(size, text.size()))) {
    whole.append(reader->take(text.substr(0, size)));
  }
  whole.append(reader->end());
  return whole;
}

// A vocabulary up to a byte 0, and a text behind it.
void read_vocabulary(std::string_view content) {
  const std::size_t end = std::min(content.find('\0'), content.size());
  Budget budget({}, "it", ErrorCode::bundle);
  const VocabularyTokenizer tokenizer(Vocabulary::from_json(json::parse(content.substr(0, end), budget), "it"));
  const std::string_view text = content.substr(std::min(end + 1, content.size()));
  const TokenPiece whole = read_text(tokenizer, text, content.size() + 1), cut = read_text(tokenizer, text, 1);
  require(whole.ids == cut.ids && whole.starts == cut.starts && whole.ends == cut.ends, "cuts do not matter");
  const auto size = static_cast<std::int64_t>(tokenizer.vocabulary().size());
  for (const std::int64_t id : whole.ids) require(id >= 0 && id < size, "ids are of the vocabulary");
  require(first_wrong_byte(tokenizer.decode(whole.ids)) == std::string_view::npos, "decoded text is UTF-8");
}

constexpr void (*kReaders[])(std::string_view) = {read_json, read_manifest, read_graph, read_state_file,
                                                  read_vocabulary};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    kReaders[data[0] % std::size(kReaders)](content);
  } catch (const Error& error) {
    require(first_wrong_byte(error.message) == std::string_view::npos, "messages are UTF-8");
    require(is_printable(std::string_view(error.message)), "messages are one line");
  }
  return 0;
}
