// The C interface: handles, statuses and texts of errors, arguments and results.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check_once.h"
#include "errors.h"
#include "known_answers.h"
#include "model.h"
#include "scorer.h"
#include "step_stream.h"
#include "stream.h"
#include "xlruntime.h"

#ifndef XLRUNTIME_VERSION
#define XLRUNTIME_VERSION "unknown"
#endif

using namespace xlruntime;

extern "C" const char* xlexport_ops_instruction_set();  // of the kernels, which are linked in

struct xlr_model {
  explicit xlr_model(Checked opened);

  std::shared_ptr<Model> model;
  std::string warning;
  std::vector<xlr_setting_info> settings;
  std::vector<std::vector<std::int64_t>> shapes;  // of inputs and outputs
  std::vector<xlr_tensor_info> inputs, outputs;
  xlr_model_info info{};
};

struct xlr_stream {
  explicit xlr_stream(std::unique_ptr<Stream> opened) : stream(std::move(opened)) {}
  explicit xlr_stream(std::unique_ptr<StepStream> opened) : steps(std::move(opened)) {}

  std::unique_ptr<Stream> stream;     // of a language model
  std::unique_ptr<StepStream> steps;  // of a step model
  Scores scores{};     // the last results
  xlr_scores shown{};  // and as C sees them
};

namespace {

struct LastError {
  std::string text, hint;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

// A function of the caller asked to stop.
class Stopped {};

// Keep the text of an error for xlr_error_text.
xlr_status failed(xlr_status status, const char* text, const char* hint = "") noexcept {
  try {
    last_error() = {text, hint};
  } catch (...) {  // no memory for the text
  }
  return status;
}

// Run `body`; turn what it throws into a status and a text.
template <class Body>
xlr_status guarded(const Body& body) noexcept {
  try {
    body();
    return XLR_OK;
  } catch (const Stopped&) {
    return failed(XLR_ERROR_STOPPED, "the caller's function asked to stop.");
  } catch (const Error& error) {
    return failed(error.code, error.what(), error.hint.c_str());
  } catch (const std::bad_alloc&) {
    return failed(XLR_ERROR_MEMORY, "there is too little memory.");
  } catch (const std::exception& error) {
    return failed(XLR_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(XLR_ERROR_INTERNAL, "an exception of unknown type.");
  }
}

void require(bool condition, const char* problem) {
  if (!condition) throw Error(XLR_ERROR_ARGUMENT, problem);
}

// The model or the stream, which must be of a language model.
Model& of_tokens(const xlr_model* model) {
  require(model != nullptr, "model is NULL.");
  if (!model->model->bundle().is_step_model()) return *model->model;
  throw Error(XLR_ERROR_OPTION, model->model->folder().string() + ": a step model, which takes numbers, not tokens.",
              "Call xlr_stream_open_rows and xlr_stream_run.");
}

Stream& of_tokens(xlr_stream* stream) {
  require(stream != nullptr, "stream is NULL.");
  if (stream->stream != nullptr) return *stream->stream;
  throw Error(XLR_ERROR_OPTION, "the stream is of a step model, which takes numbers, not tokens.",
              "Call xlr_stream_run.");
}

StepStream& of_steps(xlr_stream* stream) {
  require(stream != nullptr, "stream is NULL.");
  if (stream->steps != nullptr) return *stream->steps;
  throw Error(XLR_ERROR_OPTION, "the stream is of a language model, which takes tokens.", "Call xlr_stream_feed_ids.");
}

bool reads_tokens(const xlr_stream* stream) { return stream != nullptr && stream->stream != nullptr; }

// Copy a struct of the caller, who may have compiled it with another version of the header, over the defaults.
template <class Options>
Options options_of(const Options* options, Options defaults) {
  if (options == nullptr) return defaults;
  require(options->size >= sizeof options->size && options->size <= 4096,
          "a struct of options without its size; begin with its _INIT macro.");
  std::memcpy(&defaults, options, std::min(options->size, sizeof defaults));
  return defaults;
}

EvaluationSettings evaluation_of(const Model& model, const xlr_settings* settings) {
  const xlr_settings chosen = options_of(settings, XLR_SETTINGS_INIT);
  const auto number = [](std::int64_t value) { return value == 0 ? std::nullopt : std::optional(value); };
  return EvaluationSettings(model.bundle(), number(chosen.segment_len), number(chosen.mem_len));
}

Ids ids_of(const std::int64_t* ids, std::size_t count) {
  require(ids != nullptr || count == 0, "ids is NULL, but their number is not 0.");
  require(count <= Ids().max_size(), "more ids than any memory holds.");
  return Ids(ids, ids + count);
}

std::string_view text_of(const char* text, std::size_t size) {
  require(text != nullptr || size == 0, "text is NULL, but its size is not 0.");
  require(size <= std::string().max_size(), "a larger text than any memory holds.");
  return text == nullptr ? std::string_view("") : std::string_view(text, size);
}

Sampling sampling_of(const xlr_sampling* options) { return Sampling(options_of(options, XLR_SAMPLING_INIT)); }

std::function<bool(std::int64_t)> token_function(xlr_token_function take, void* user) {
  require(take != nullptr, "the function that takes tokens is NULL.");
  return [take, user](std::int64_t token) { return take(user, token) == 0; };
}

// Scores as C sees them; they must outlive the result.
xlr_scores view_of(const Scores& scores) {
  xlr_scores view{};
  view.count = scores.tokens.size();
  view.index = scores.index.data();
  view.tokens = scores.tokens.data();
  view.log_probs = scores.log_probs.data();
  view.context = scores.context.data();
  return view;
}

// A copy that xlr_free frees.
template <class Item>
Item* copy_of(const Item* items, std::size_t count, std::size_t more = 0) {
  auto* const copied = static_cast<Item*>(std::calloc(std::max<std::size_t>(count + more, 1), sizeof(Item)));
  if (copied == nullptr) throw std::bad_alloc();
  if (count != 0) std::memcpy(copied, items, count * sizeof(Item));
  return copied;
}

constexpr std::int64_t kNoBos = -2;

void score(xlr_model* model, const Document& document, const xlr_score_options* options, xlr_scores_function take,
           void* user, xlr_document_score* total) {
  of_tokens(model);
  require(total == nullptr || total->size >= sizeof total->size,
          "total without its size; begin with XLR_DOCUMENT_SCORE_INIT.");
  const xlr_score_options chosen = options_of(options, XLR_SCORE_OPTIONS_INIT);
  const EvaluationSettings evaluation = evaluation_of(*model->model, chosen.settings);
  ScoreOptions wanted;
  const Tokenization& rule = model->model->bundle().tokenizer;
  if (chosen.bos >= 0 || chosen.bos < kNoBos) wanted.bos = chosen.bos;
  if (chosen.bos == -1 && rule.adds_begin && (document.text || document.file)) wanted.bos = rule.begin;
  if (chosen.top != -1) wanted.top = chosen.top;
  const auto show_step = [&](const DocumentScores& scores) {
    if (take == nullptr) return true;
    xlr_scores view = view_of(scores);
    view.starts = scores.starts.data();
    view.ends = scores.ends.data();
    if (wanted.top) {
      view.top = static_cast<std::size_t>(*wanted.top);
      view.rank = scores.rank.data();
      view.entropy = scores.entropy.data();
      view.top_ids = scores.top_ids.data();
      view.top_log_probs = scores.top_log_probs.data();
    }
    return take(user, &view) == 0;
  };
  auto result = Scorer(*model->model, evaluation, document, wanted).run(show_step);
  if (!result) throw Stopped();
  if (total == nullptr) return;
  result->size = std::min(total->size, sizeof *result);
  std::memcpy(total, &*result, result->size);
}

// Run what gives scores on the stream, and show them.
template <class Run>
xlr_status show(xlr_stream* stream, const xlr_scores** out, const Run& run) {
  return guarded([&] {
    stream->scores = run(of_tokens(stream));
    stream->shown = view_of(stream->scores);
    if (out != nullptr) *out = &stream->shown;
  });
}

}  // namespace

xlr_model::xlr_model(Checked opened) : model(std::move(opened.model)), warning(std::move(opened.warning)) {
  const Bundle& bundle = model->bundle();
  settings.push_back({"segment_len", "tokens in one step; the longest document if a document is one step",
                      bundle.document.segment_len, 1, kLargestLength, 0, 0, 0});
  for (const Setting& setting : bundle.settings) {
    settings.push_back({setting.name.c_str(), setting.meaning.c_str(), setting.value, setting.minimum, setting.maximum,
                        setting.off.value_or(0), setting.is_boolean ? 1 : 0, setting.off ? 1 : 0});
  }
  const auto list = [this](const std::vector<Tensor>& tensors, std::vector<xlr_tensor_info>& infos) {
    for (const Tensor& tensor : tensors) {
      std::vector<std::int64_t>& shape = shapes.emplace_back();
      for (std::size_t i = 2; i < tensor.shape.size(); ++i) shape.push_back(tensor.shape[i].size);
      infos.push_back({tensor.name.c_str(), tensor.dtype.c_str(), shape.size(), shape.data(),
                       static_cast<std::size_t>(step_bytes(tensor))});
    }
  };
  if (bundle.is_step_model()) {
    list(model->best_graph("run").fed, inputs);
    list(model->best_graph("run").outputs, outputs);
  }
  info = {bundle.architecture.c_str(),
          bundle.precision.c_str(),
          bundle.tokenizer.kind.c_str(),
          bundle.fingerprint.c_str(),
          bundle.digest.c_str(),
          model->ort().version().c_str(),
          bundle.vocab_size,
          bundle.document.full_document ? 1 : 0,
          bundle.document.restart ? 1 : 0,
          settings.size(),
          settings.data(),
          model->tokenizer().reads_text() ? 1 : 0,
          bundle.tokenizer.adds_begin ? 1 : 0,
          bundle.tokenizer.begin.value_or(-1),
          warning.c_str(),
          inputs.size(),
          inputs.data(),
          outputs.size(),
          outputs.data()};
}

const char* xlr_error_text(void) { return last_error().text.c_str(); }

const char* xlr_error_hint(void) { return last_error().hint.c_str(); }

const char* xlr_error_code(xlr_status status) { return code_word(status); }

const char* xlr_version(void) { return XLRUNTIME_VERSION; }

const char* xlr_instruction_set(void) { return xlexport_ops_instruction_set(); }

void xlr_free(void* buffer) { std::free(buffer); }

xlr_status xlr_load(const char* folder, const xlr_load_options* options, xlr_model** model) {
  return guarded([&] {
    require(folder != nullptr && model != nullptr, "folder or model is NULL.");
    const xlr_load_options chosen = options_of(options, XLR_LOAD_OPTIONS_INIT);
    if (chosen.threads < 0) {
      throw Error(XLR_ERROR_OPTION, "threads is " + std::to_string(chosen.threads) + ", expected at least 0.");
    }
    const Onnxruntime& ort = Onnxruntime::load(chosen.onnxruntime == nullptr ? "" : chosen.onnxruntime);
    const auto open = [&](bool kernels) {
      const SessionOptions sessions{chosen.threads, kernels};
      return std::make_shared<Model>(folder, ort, sessions, chosen.digest, chosen.check_files != 0);
    };
    const bool kernels = chosen.kernels != 0;
    *model = new xlr_model(chosen.check_once == 0 ? Checked{open(kernels), ""} : check_once(open, kernels));
  });
}

void xlr_model_close(xlr_model* model) { delete model; }

const xlr_model_info* xlr_model_get_info(const xlr_model* model) { return model == nullptr ? nullptr : &model->info; }

xlr_status xlr_check(xlr_model* model, xlr_check_result* result) {
  return guarded([&] {
    require(model != nullptr, "model is NULL.");
    require(result == nullptr || result->size >= sizeof result->size,
            "result without its size; begin with XLR_CHECK_RESULT_INIT.");
    const std::optional<Check> check = check_known_answers(model->model);
    xlr_check_result found = XLR_CHECK_RESULT_INIT;
    if (check) found = {sizeof found, 1, check->problem ? 0 : 1, check->certain ? 1 : 0, check->tokens, check->largest};
    if (result != nullptr) {
      found.size = std::min(result->size, sizeof found);
      std::memcpy(result, &found, found.size);
    }
    if (!check || !check->problem || !check->certain) return;
    throw Error(XLR_ERROR_BUNDLE_GRAPH, model->model->folder().string() + ": " + *check->problem + ".",
                "Load it without kernels, or convert the checkpoint again.");
  });
}

xlr_status xlr_encode(const xlr_model* model, const char* text, size_t size, int64_t** ids, size_t* count) {
  return guarded([&] {
    require(model != nullptr && ids != nullptr && count != nullptr, "model, ids or count is NULL.");
    const Ids encoded = of_tokens(model).tokenizer().encode_whole(text_of(text, size));
    *ids = copy_of(encoded.data(), encoded.size());
    *count = encoded.size();
  });
}

xlr_status xlr_decode(const xlr_model* model, const int64_t* ids, size_t count, char** text, size_t* size) {
  return guarded([&] {
    require(model != nullptr && text != nullptr && size != nullptr, "model, text or size is NULL.");
    const Ids all = ids_of(ids, count);
    check_ids(all.data(), all.size(), of_tokens(model).bundle().vocab_size, "the ids");
    const std::string decoded = model->model->tokenizer().decode(all);
    *text = copy_of(decoded.data(), decoded.size(), 1);
    *size = decoded.size();
  });
}

xlr_status xlr_score_text(xlr_model* model, const char* text, size_t size, const xlr_score_options* options,
                          xlr_scores_function take, void* user, xlr_document_score* total) {
  return guarded([&] {
    const Document document{"the text", text_of(text, size), std::nullopt, nullptr, 0};
    score(model, document, options, take, user, total);
  });
}

xlr_status xlr_score_file(xlr_model* model, const char* path, const xlr_score_options* options,
                          xlr_scores_function take, void* user, xlr_document_score* total) {
  return guarded([&] {
    require(path != nullptr, "path is NULL.");
    const Document document{path, std::nullopt, path, nullptr, 0};
    score(model, document, options, take, user, total);
  });
}

xlr_status xlr_score_ids(xlr_model* model, const int64_t* ids, size_t count, const xlr_score_options* options,
                         xlr_scores_function take, void* user, xlr_document_score* total) {
  return guarded([&] {
    require(ids != nullptr || count == 0, "ids is NULL, but their number is not 0.");
    require(count <= Ids().max_size(), "more ids than any memory holds.");
    const Document document{"the ids", std::nullopt, std::nullopt, ids, count};
    score(model, document, options, take, user, total);
  });
}

xlr_status xlr_generate(xlr_model* model, const int64_t* prompt, size_t count, const xlr_settings* settings,
                        size_t max_tokens, const xlr_sampling* sampling, xlr_token_function take, void* user) {
  return guarded([&] {
    const EvaluationSettings evaluation = evaluation_of(of_tokens(model), settings);
    const Ids ids = ids_of(prompt, count);
    const Sampling rule = sampling_of(sampling);
    const auto function = token_function(take, user);
    if (evaluation.document().full_document) {
      generate_full_document(*model->model, evaluation, ids, max_tokens, rule, function);
    } else {
      Stream(model->model, evaluation, 0).generate(ids, max_tokens, rule, function);
    }
  });
}

xlr_status xlr_stream_open(xlr_model* model, const xlr_settings* settings, int64_t capacity, xlr_stream** stream) {
  return guarded([&] {
    require(model != nullptr && stream != nullptr, "model or stream is NULL.");
    const EvaluationSettings evaluation = evaluation_of(of_tokens(model), settings);
    *stream = new xlr_stream(std::make_unique<Stream>(model->model, evaluation, capacity));
  });
}

xlr_status xlr_stream_open_rows(xlr_model* model, size_t rows, xlr_stream** stream) {
  return guarded([&] {
    require(model != nullptr && stream != nullptr, "model or stream is NULL.");
    const EvaluationSettings evaluation(model->model->bundle());
    const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(rows, kLargestSize));
    *stream = new xlr_stream(std::make_unique<StepStream>(model->model, evaluation, count));
  });
}

xlr_status xlr_stream_run(xlr_stream* stream, const xlr_tensor* inputs, size_t input_count, const xlr_tensor* outputs,
                          size_t output_count, size_t steps) {
  return guarded([&] { of_steps(stream).run(inputs, input_count, outputs, output_count, steps); });
}

void xlr_stream_close(xlr_stream* stream) { delete stream; }

xlr_status xlr_stream_feed_text(xlr_stream* stream, const char* text, size_t size, const xlr_scores** scores) {
  return show(stream, scores, [&](Stream& opened) { return opened.feed(text_of(text, size)); });
}

xlr_status xlr_stream_feed_ids(xlr_stream* stream, const int64_t* ids, size_t count, const xlr_scores** scores) {
  return show(stream, scores, [&](Stream& opened) { return opened.feed(ids_of(ids, count)); });
}

xlr_status xlr_stream_flush(xlr_stream* stream, const xlr_scores** scores) {
  return show(stream, scores, [](Stream& opened) { return opened.flush(); });
}

xlr_status xlr_stream_preview(xlr_stream* stream, const xlr_scores** scores) {
  return show(stream, scores, [](Stream& opened) { return opened.preview(); });
}

xlr_status xlr_stream_score_text(xlr_stream* stream, const char* text, size_t size, const xlr_scores** scores) {
  return show(stream, scores,
              [&](Stream& opened) { return opened.score_continuation(text_of(text, size)); });
}

xlr_status xlr_stream_score_ids(xlr_stream* stream, const int64_t* ids, size_t count, const xlr_scores** scores) {
  return show(stream, scores, [&](Stream& opened) { return opened.score_continuation(ids_of(ids, count)); });
}

xlr_status xlr_stream_generate(xlr_stream* stream, const int64_t* prompt, size_t count, size_t max_tokens,
                               const xlr_sampling* sampling, xlr_token_function take, void* user) {
  return guarded([&] {
    of_tokens(stream).generate(ids_of(prompt, count), max_tokens, sampling_of(sampling), token_function(take, user));
  });
}

xlr_status xlr_stream_fork(const xlr_stream* stream, xlr_stream** twin) {
  return guarded([&] {
    require(stream != nullptr && twin != nullptr, "stream or twin is NULL.");
    *twin = stream->steps ? new xlr_stream(stream->steps->fork()) : new xlr_stream(stream->stream->fork());
  });
}

xlr_status xlr_stream_reset(xlr_stream* stream) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    stream->steps ? stream->steps->reset() : stream->stream->reset();
  });
}

xlr_status xlr_stream_reset_row(xlr_stream* stream, size_t row) {
  return guarded([&] { of_steps(stream).reset(row); });
}

xlr_status xlr_stream_save(const xlr_stream* stream, const char* file) {
  return guarded([&] {
    require(stream != nullptr && file != nullptr, "stream or file is NULL.");
    stream->steps ? stream->steps->save(file) : stream->stream->save(file);
  });
}

xlr_status xlr_stream_restore(xlr_model* model, const char* file, int64_t capacity, xlr_stream** stream) {
  return guarded([&] {
    require(model != nullptr && file != nullptr && stream != nullptr, "model, file or stream is NULL.");
    if (!model->model->bundle().is_step_model()) {
      *stream = new xlr_stream(Stream::restore(model->model, file, capacity));
    } else {
      if (capacity != 0) throw Error(XLR_ERROR_OPTION, "capacity is not 0, but a step model has no slots.");
      *stream = new xlr_stream(StepStream::restore(model->model, file));
    }
  });
}

size_t xlr_stream_rows(const xlr_stream* stream) {
  return stream == nullptr ? 0 : stream->steps ? static_cast<std::size_t>(stream->steps->rows()) : 1;
}

int64_t xlr_stream_row_position(const xlr_stream* stream, size_t row) {
  if (row >= xlr_stream_rows(stream)) return 0;
  return stream->steps ? stream->steps->position(row) : stream->stream->position();
}

int64_t xlr_stream_position(const xlr_stream* stream) { return xlr_stream_row_position(stream, 0); }

int64_t xlr_stream_pending(const xlr_stream* stream) {
  return reads_tokens(stream) ? stream->stream->pending().value_or(-1) : -1;
}

size_t xlr_stream_memory_bytes(const xlr_stream* stream) {
  return stream == nullptr ? 0 : stream->steps ? stream->steps->nbytes() : stream->stream->nbytes();
}

int64_t xlr_stream_unsettled_cuts(const xlr_stream* stream) {
  return reads_tokens(stream) ? stream->stream->unsettled_cuts() : 0;
}

int64_t xlr_stream_resets(const xlr_stream* stream) { return reads_tokens(stream) ? stream->stream->resets() : 0; }
