#include "player.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace conformance {

namespace fs = std::filesystem;
using xlruntime::json::Array;
using xlruntime::json::Object;
using xlruntime::json::Value;

namespace {

constexpr std::size_t kPrefix = 8;  // bytes of the length of a header of safetensors

void check(xlr_status status) {
  if (status != XLR_OK) throw Refusal(status);
}

Object parsed(std::string_view text, const std::string& name) {
  const Value value = xlruntime::json::parse(text, name, XLR_ERROR_FILE);
  if (value.as<Object>() == nullptr) throw std::runtime_error(name + ": not an object");
  return *value.as<Object>();
}

// Return a field, or `otherwise` if it is missing or null.
double number(const Object& object, const char* name, double otherwise) {
  const Value* found = object.find(name);
  if (found == nullptr || found->is_null()) return otherwise;
  const auto* whole = found->as<std::int64_t>();
  return whole != nullptr ? static_cast<double>(*whole) : field<double>(object, name);
}

std::int64_t integer(const Object& object, const char* name, std::int64_t otherwise) {
  return static_cast<std::int64_t>(number(object, name, static_cast<double>(otherwise)));
}

std::vector<std::int64_t> integers(const Array& list) {
  std::vector<std::int64_t> found;
  for (const Value& value : list) found.push_back(*value.as<std::int64_t>());
  return found;
}

std::string from_base64(const std::string& text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string raw;
  unsigned bits = 0, count = 0;
  for (const char digit : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<unsigned>(kDigits.find(digit));
    if ((count += 6) < 8) continue;
    count -= 8;
    raw += static_cast<char>(bits >> count & 255);
  }
  return raw;
}

template <class T>
Array array(const T* values, std::size_t count) {
  return Array(values, values + count);
}

// Scores of tokens, name by name.
using Columns = std::map<std::string, Array>;

void add(Columns& all, const xlr_scores& scores) {
  const std::size_t n = scores.count, k = scores.top;
  const auto append = [&](const char* name, const auto* values) {
    if (values == nullptr && n > 0) return;
    Array& column = all[name];
    for (std::size_t i = 0; i < n; ++i) column.emplace_back(values[i]);
  };
  append("index", scores.index);
  append("tokens", scores.tokens);
  append("log_probs", scores.log_probs);
  append("context", scores.context);
  append("starts", scores.starts);
  append("ends", scores.ends);
  append("rank", scores.rank);
  append("entropy", scores.entropy);
  for (std::size_t i = 0; i < n && scores.rank != nullptr; ++i) {
    all["top_ids"].emplace_back(array(scores.top_ids + i * k, k));
    all["top_log_probs"].emplace_back(array(scores.top_log_probs + i * k, k));
  }
}

Object object_of(Columns columns) {
  Object found;
  for (auto& [name, column] : columns) found.emplace_back(name, std::move(column));
  return found;
}

Value ratio(double number) {  // JSON has no numbers that are not finite
  return std::isnan(number) ? Value() : std::isinf(number) ? Value("Infinity") : Value(number);
}

xlr_sampling sampling_of(const Object& given) {
  xlr_sampling sampling = XLR_SAMPLING_INIT;
  sampling.temperature = number(given, "temperature", 1);
  sampling.top_p = number(given, "top_p", 1);
  sampling.min_p = number(given, "min_p", 0);
  sampling.repetition_penalty = number(given, "repetition_penalty", 1);
  sampling.repetition_window = integer(given, "repetition_window", 64);
  sampling.top_k = integer(given, "top_k", -1);
  if (sampling.top_k == 0) throw NotGiven{"top_k of 0"};  // in C that is all tokens
  if (sampling.top_k == -1) sampling.top_k = 0;
  if (const Value* seed = given.find("seed")) {
    const auto* number = seed->as<std::int64_t>();
    const std::string digits = number != nullptr ? std::to_string(*number) : *seed->as<std::string>();
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), sampling.seed);
    if (problem != std::errc()) throw NotGiven{"a seed below 0"};
    sampling.has_seed = 1;
  }
  return sampling;
}

// Call `use` with a zero of the type that a dtype names.
template <class Use>
void with_type(const std::string& dtype, const Use& use) {
  dtype == "float32"   ? use(float{})
  : dtype == "float64" ? use(double{})
  : dtype == "bool"    ? use(bool{})
  : dtype == "int8"    ? use(std::int8_t{})
  : dtype == "int16"   ? use(std::int16_t{})
  : dtype == "int32"   ? use(std::int32_t{})
  : dtype == "int64"   ? use(std::int64_t{})
  : dtype == "uint8"   ? use(std::uint8_t{})
  : dtype == "uint16"  ? use(std::uint16_t{})
  : dtype == "uint32"  ? use(std::uint32_t{})
  : dtype == "uint64"  ? use(std::uint64_t{})
                       : throw NotGiven{"numbers of " + dtype};
}

// A tensor, and the nested lists that say the same in JSON.
struct Numbers {
  std::string name, dtype;
  std::vector<std::size_t> sizes{};
  std::string bytes{};

  // Take a value at this depth of the lists. Those of another kind than the dtype change it, and are then refused.
  void read(const Value& value, std::size_t depth) {
    if (const auto* list = value.as<Array>()) {
      if (depth == sizes.size()) sizes.push_back(list->size());
      for (const Value& each : *list) read(each, depth + 1);
      return;
    }
    const auto *flag = value.as<bool>();
    const auto *whole = value.as<std::int64_t>();
    const auto* text = value.as<std::string>();  // of a number that is not finite
    const double real = text != nullptr ? std::strtod(text->c_str(), nullptr) : flag || whole ? 0 : *value.as<double>();
    if ((flag != nullptr) != (dtype == "bool")) dtype = flag ? "bool" : "int64";
    if (!flag && !whole && dtype != "float64") dtype = "float32";
    with_type(dtype, [&](auto number) {
      using T = decltype(number);
      number = flag ? static_cast<T>(*flag) : whole ? static_cast<T>(*whole) : static_cast<T>(real);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    });
  }

  Value value() const {
    const char* place = bytes.data();
    return value(0, place);
  }

 private:
  Value value(std::size_t depth, const char*& place) const {
    if (depth < sizes.size()) {
      Array list;
      for (std::size_t i = 0; i < sizes[depth]; ++i) list.push_back(value(depth + 1, place));
      return list;
    }
    Value found;
    with_type(dtype, [&](auto number) {
      using T = decltype(number);
      std::memcpy(&number, place, sizeof number);
      place += sizeof number;
      if constexpr (std::is_same_v<T, bool>) {
        found = number;
      } else if constexpr (std::is_integral_v<T>) {
        found = static_cast<std::int64_t>(number);
      } else {
        found = static_cast<double>(number);
      }
    });
    return found;
  }
};

int take_scores(void* user, const xlr_scores* scores) noexcept {
  add(*static_cast<Columns*>(user), *scores);
  return 0;
}

int take_token(void* user, std::int64_t token) noexcept {
  static_cast<Array*>(user)->emplace_back(token);
  return 0;
}

}  // namespace

Refusal::Refusal(xlr_status status) : std::runtime_error(xlr_error_text()), code(xlr_error_code(status)) {}

TemporaryFolder::TemporaryFolder()
    : path(fs::temp_directory_path() / ("xlconformance-" + std::to_string(std::random_device()()))) {
  if (!fs::create_directory(path)) throw std::runtime_error(path.u8string() + " is already there");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

Object read_object(const fs::path& file) { return parsed(xlruntime::read_file(file), file.u8string()); }

Object Player::play(const Object& action) {
  static const std::map<std::string, Action Player::*> kActions = {
      {"open", &Player::open},         {"encode", &Player::encode}, {"decode", &Player::decode},
      {"score", &Player::score},       {"stream", &Player::stream}, {"feed", &Player::feed},
      {"fork", &Player::fork},         {"reset", &Player::reset},   {"score_continuation", &Player::feed},
      {"generate", &Player::generate}, {"save", &Player::save},     {"restore", &Player::restore},
      {"grow", &Player::grow},         {"leave", &Player::leave},   {"check", &Player::check_answers},
      {"run", &Player::run}};
  return (this->*kActions.at(field<std::string>(action, "do")))(action);
}

fs::path Player::state(const std::string& name) const {
  const fs::path file = fs::u8path(name + ".safetensors");
  for (const fs::path& folder : {work_.path, options_.states}) {
    if (!folder.empty() && fs::is_regular_file(folder / file)) return folder / file;
  }
  return options_.kit / "states" / file;
}

Object Player::open(const Object& action) {
  fs::path folder = options_.kit / "bundles" / fs::u8path(field<std::string>(action, "bundle"));
  if (action.find("files") != nullptr) {
    const Object& changed = field<Object>(action, "files");
    const fs::path copy = work_.path / ("bundle_" + std::to_string(++copies_));
    fs::create_directory(copy);
    for (const auto& file : fs::directory_iterator(folder)) {
      const fs::path name = file.path().filename();
      if (changed.find(name.u8string()) == nullptr) fs::copy_file(file.path(), copy / name);
    }
    for (const auto& [name, source] : changed) {
      const auto* path = source.as<std::string>();
      if (path != nullptr) fs::copy_file(options_.kit / fs::u8path(*path), copy / fs::u8path(name));
    }
    folder = copy;
  }
  xlr_load_options options = XLR_LOAD_OPTIONS_INIT;
  if (!options_.onnxruntime.empty()) options.onnxruntime = options_.onnxruntime.c_str();
  options.threads = 1;
  options.kernels = options_.kernels;
  const Value* digest = action.find("digest");
  if (digest != nullptr) options.digest = digest->as<std::string>()->c_str();
  xlr_model* model = nullptr;
  check(xlr_load(folder.string().c_str(), &options, &model));
  model_.reset(model);
  return {{"vocab_size", info().vocab_size}, {"fingerprint", info().fingerprint}, {"digest", info().digest}};
}

Object Player::check_answers(const Object&) {
  xlr_check_result result = XLR_CHECK_RESULT_INIT;
  const xlr_status status = xlr_check(model_.get(), &result);
  if (status != XLR_OK && !result.known) throw Refusal(status);
  return {{"passed", result.known ? Value(result.passed != 0) : Value()}, {"tokens", result.tokens}};
}

Object Player::encode(const Object& action) {
  const Ids ids = tokens(action, "text");
  return {{"ids", array(ids.data(), ids.size())}};
}

Object Player::decode(const Object& action) {
  if (!lacking().empty()) throw NotTried{lacking()};
  const Ids ids = integers(field<Array>(action, "ids"));
  char* text = nullptr;
  std::size_t size = 0;
  check(xlr_decode(model_.get(), ids.data(), ids.size(), &text, &size));
  const std::string found(text, size);
  xlr_free(text);
  return {{"text", found}};
}

Object Player::score(const Object& action) {
  const Source document = source(action, "document");
  const xlr_settings chosen = settings(action);
  xlr_score_options options = XLR_SCORE_OPTIONS_INIT;
  options.settings = &chosen;
  options.bos = integer(action, "bos", -1);
  options.top = static_cast<int>(integer(action, "detail", -1));
  xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
  Columns columns;
  add(columns, xlr_scores{});  // a document may have no scores at all
  check(document.is_ids ? xlr_score_ids(model_.get(), document.ids.data(), document.ids.size(), &options, take_scores,
                                        &columns, &total)
                        : xlr_score_text(model_.get(), document.text.data(), document.text.size(), &options,
                                         take_scores, &columns, &total));
  Object found = object_of(std::move(columns));
  Object counts{{"tokens", total.tokens},
                 {"scored_tokens", total.scored_tokens},
                 {"words", total.words},
                 {"chars", total.chars},
                 {"bytes", total.bytes},
                 {"dropped_chars", total.dropped_chars},
                 {"dropped_bytes", total.dropped_bytes}};
  if (lacking().empty()) counts.emplace_back("unknown_tokens", total.unknown_tokens);
  found.emplace_back("counts", std::move(counts));
  found.emplace_back("totals", Object{{"nats", ratio(total.nats)},
                              {"bits", ratio(total.bits)},
                              {"bits_per_byte", ratio(total.bits_per_byte)},
                              {"bits_per_char", ratio(total.bits_per_char)},
                              {"bits_per_token", ratio(total.bits_per_token)},
                              {"perplexity", ratio(total.perplexity)}});
  return found;
}

Object Player::stream(const Object& action) {
  const xlr_settings chosen = settings(action);
  xlr_stream* made = nullptr;
  const Value* const rows = action.find("rows");
  if (rows != nullptr && integer(action, "rows", 0) == 0) throw NotGiven{"rows of 0"};  // in C that is the bundle's own
  check(rows != nullptr || info().vocab_size == 0
            ? xlr_stream_open_rows(model_.get(), static_cast<std::size_t>(integer(action, "rows", 0)), &made)
            : xlr_stream_open(model_.get(), &chosen, integer(action, "capacity", 0), &made));
  streams_[field<std::string>(action, "as")].reset(made);
  return {{"capacity", capacity(made)}};
}

// Feed pieces, pass the stream through a saved state, and flush it: how much is held differs by runtime.
Object Player::grow(const Object& action) {
  const xlr_scores* scores = nullptr;
  Columns columns;
  for (const Value& each : field<Array>(action, "pieces")) {
    const Source piece = source(Object{{"piece", each}}, "piece");
    check(piece.is_ids ? xlr_stream_feed_ids(opened(action), piece.ids.data(), piece.ids.size(), &scores)
                       : xlr_stream_feed_text(opened(action), piece.text.data(), piece.text.size(), &scores));
    add(columns, *scores);
  }
  const std::string file = (work_.path / "held.state").string();
  check(xlr_stream_save(opened(action), file.c_str()));
  xlr_stream* restored = nullptr;
  check(xlr_stream_restore(model_.get(), file.c_str(), 0, &restored));
  streams_[field<std::string>(action, "stream")].reset(restored);
  check(xlr_stream_flush(restored, &scores));
  add(columns, *scores);
  return object_of(std::move(columns));
}

Object Player::feed(const Object& action) {
  const bool stays = field<std::string>(action, "do") == "score_continuation";
  const Source piece = source(action, "piece");
  const xlr_scores* scores = nullptr;
  if (piece.is_ids) {
    const auto run = stays ? xlr_stream_score_ids : xlr_stream_feed_ids;
    check(run(opened(action), piece.ids.data(), piece.ids.size(), &scores));
  } else {
    const auto run = stays ? xlr_stream_score_text : xlr_stream_feed_text;
    check(run(opened(action), piece.text.data(), piece.text.size(), &scores));
  }
  Columns columns;
  add(columns, *scores);
  return object_of(std::move(columns));
}

Object Player::fork(const Object& action) {
  xlr_stream* twin = nullptr;
  check(xlr_stream_fork(opened(action), &twin));
  streams_[field<std::string>(action, "as")].reset(twin);
  return {{"position", position(twin)}};
}

Object Player::reset(const Object& action) {
  const std::int64_t row = integer(action, "row", -1);
  check(action.find("row") != nullptr ? xlr_stream_reset_row(opened(action), static_cast<std::size_t>(row))
                                      : xlr_stream_reset(opened(action)));
  return {{"position", position(opened(action))}};
}

Object Player::generate(const Object& action) {
  const Ids prompt = action.find("prompt") != nullptr ? tokens(action, "prompt") : Ids();
  const xlr_sampling sampling = sampling_of(field<Object>(action, "sampling"));
  const std::int64_t most = field<std::int64_t>(action, "max_tokens");
  if (most < 0) throw NotGiven{"max_tokens below 0"};
  const xlr_settings chosen = settings(action);
  Array ids;
  check(action.find("stream") != nullptr
            ? xlr_stream_generate(opened(action), prompt.data(), prompt.size(), static_cast<std::size_t>(most),
                                  &sampling, take_token, &ids)
            : xlr_generate(model_.get(), prompt.data(), prompt.size(), &chosen, static_cast<std::size_t>(most),
                           &sampling, take_token, &ids));
  return {{"ids", ids}};
}

// Save a stream for other runtimes; how much text it holds is not compared.
Object Player::leave(const Object& action) {
  const fs::path file = work_.path / fs::u8path(field<std::string>(action, "as") + ".safetensors");
  check(xlr_stream_save(opened(action), file.string().c_str()));
  return {};
}

Object Player::save(const Object& action) {
  const fs::path file = work_.path / fs::u8path(field<std::string>(action, "as") + ".safetensors");
  Object found = saved(opened(action), file);
  const char* const other = action.find("same_as") != nullptr ? "same_as" : "as";
  found.emplace_back("same", xlruntime::read_file(file) == xlruntime::read_file(state(field<std::string>(action, other))));
  return found;
}

Object Player::restore(const Object& action) {
  const std::string file = state(field<std::string>(action, "state")).string();
  xlr_stream* made = nullptr;
  check(xlr_stream_restore(model_.get(), file.c_str(), integer(action, "capacity", 0), &made));
  streams_[field<std::string>(action, "as")].reset(made);
  return {{"position", position(made)}};
}

Object Player::run(const Object& action) {
  xlr_stream* const stream = opened(action);
  const std::size_t rows = xlr_stream_rows(stream);
  std::size_t steps = 0;
  std::vector<Numbers> given, taken;
  for (const auto& [name, value] : field<Object>(action, "inputs")) {
    const xlr_tensor_info* const end = info().inputs + info().input_count;
    const auto is_named = [&input = name](const auto& each) { return each.name == input; };
    const auto* const wanted = std::find_if(info().inputs, end, is_named);
    Numbers& numbers = given.emplace_back(Numbers{name, wanted == end ? "float32" : wanted->dtype});
    numbers.read(value, 0);
    if (numbers.sizes.size() > 1) steps = numbers.sizes[1];
    if (wanted == end) continue;
    std::vector<std::size_t> sizes{rows, steps};
    sizes.insert(sizes.end(), wanted->shape, wanted->shape + wanted->axes);
    const bool has_size = numbers.bytes.size() == rows * steps * wanted->bytes;
    if (has_size && sizes != numbers.sizes) throw NotGiven{"inputs of another shape and of the right size"};
  }
  for (const xlr_tensor_info* each = info().outputs; each != info().outputs + info().output_count; ++each) {
    Numbers& numbers = taken.emplace_back(Numbers{each->name, each->dtype, {rows, steps}});
    numbers.sizes.insert(numbers.sizes.end(), each->shape, each->shape + each->axes);
    numbers.bytes.resize(rows * steps * each->bytes);
  }
  const auto tensors = [](std::vector<Numbers>& all) {
    std::vector<xlr_tensor> made;
    for (Numbers& each : all) {
      made.push_back({each.name.c_str(), each.dtype.c_str(), each.bytes.data(), each.bytes.size()});
    }
    return made;
  };
  const auto inputs = tensors(given), outputs = tensors(taken);
  check(xlr_stream_run(stream, inputs.data(), inputs.size(), outputs.data(), outputs.size(), steps));
  Object found;
  for (const Numbers& each : taken) found.emplace_back(each.name, each.value());
  return {{"outputs", found}};
}

// Return the text, bytes or token ids that an action gives in one of four ways.
Player::Source Player::source(const Object& action, const char* name) const {
  const auto& [way, value] = field<Object>(action, name).at(0);
  if (way == "ids") return {true, integers(*value.as<Array>()), ""};
  if (!lacking().empty()) throw NotTried{lacking()};
  const std::string& text = *value.as<std::string>();
  if (way == "base64") return {false, {}, from_base64(text)};
  return {false, {}, way == "file" ? xlruntime::read_file(options_.kit / fs::u8path(text)) : text};
}

Player::Ids Player::tokens(const Object& action, const char* name) const {
  const Source given = source(action, name);
  if (given.is_ids) return given.ids;
  std::int64_t* ids = nullptr;
  std::size_t count = 0;
  check(xlr_encode(model_.get(), given.text.data(), given.text.size(), &ids, &count));
  const Ids found(ids, ids + count);
  xlr_free(ids);
  return found;
}

xlr_settings Player::settings(const Object& action) const {
  xlr_settings chosen = XLR_SETTINGS_INIT;
  if (action.find("settings") == nullptr) return chosen;
  for (const auto& [name, value] : field<Object>(action, "settings")) {
    const auto* number = value.as<std::int64_t>();
    const bool is_known = name == "segment_len" || name == "mem_len";
    if (!is_known || number == nullptr || *number == 0) throw NotGiven{"settings that are 0, unknown or no numbers"};
    (name == "segment_len" ? chosen.segment_len : chosen.mem_len) = *number;
  }
  return chosen;
}

const xlr_model_info& Player::info() const {
  if (model_ == nullptr) throw std::runtime_error("no bundle is open");
  return *xlr_model_get_info(model_.get());
}

// Return why text cannot be given, or "".
std::string Player::lacking() const {
  const std::string_view kind = info().reads_text != 0 ? "" : info().tokenizer;
  return kind == "tokenizers"      ? "this runtime has no tokenizer.json"
         : kind == "sentencepiece" ? "this runtime has no SentencePiece"
                                   : "";
}

xlr_stream* Player::opened(const Object& action) const {
  const auto found = streams_.find(field<std::string>(action, "stream"));
  if (found == streams_.end()) throw std::runtime_error("the stream was not opened");
  return found->second.get();
}

// Save a stream, and return what the header of the file says of it.
Object Player::saved(const xlr_stream* stream, const fs::path& file) const {
  check(xlr_stream_save(stream, file.string().c_str()));
  const std::string raw = xlruntime::read_file(file);
  std::size_t size = 0;
  for (std::size_t i = kPrefix; i-- > 0;) size = size << 8 | static_cast<unsigned char>(raw.at(i));
  Object metadata, tensors;
  for (const auto& [name, value] : parsed(std::string_view(raw).substr(kPrefix, size), "the header")) {
    const Object& entry = *value.as<Object>();
    if (name != "__metadata__") {
      tensors.emplace_back(name, Array{*entry.find("dtype"), *entry.find("shape")});
      continue;
    }
    for (const auto& text : entry) {
      if (text.first != "digest") metadata.push_back(text);
    }
  }
  return {{"metadata", metadata}, {"tensors", tensors}};
}

// The steps or tokens of a stream, those of a step model for each row.
Value Player::position(const xlr_stream* stream) const {
  if (info().vocab_size != 0) return xlr_stream_position(stream);
  Array rows;
  for (std::size_t i = 0; i < xlr_stream_rows(stream); ++i) rows.emplace_back(xlr_stream_row_position(stream, i));
  return rows;
}

Value Player::capacity(const xlr_stream* stream) const {
  const Object state = saved(stream, work_.path / "opened");
  return std::stoll(field<std::string>(field<Object>(state, "metadata"), "capacity"));
}

}  // namespace conformance
