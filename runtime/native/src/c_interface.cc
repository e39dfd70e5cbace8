// The C interface, without streams.
#include <cmath>

#include "c_handles.h"
#include "messages.h"

#ifndef XLRUNTIME_VERSION
#define XLRUNTIME_VERSION "unknown"
#endif

using namespace xlruntime;

namespace {

double ratio(double amount, std::int64_t count) {
  return count > 0 ? amount / static_cast<double>(count) : std::nan("");
}

xlr_document_score public_total(const DocumentTotal& total) {
  constexpr double kLargestMean = 700;  // nats; e to a larger power overflows
  xlr_document_score score = XLR_DOCUMENT_SCORE_INIT;
  score.tokens = total.tokens;
  score.scored_tokens = total.scored_tokens;
  score.unknown_tokens = total.unknown_tokens;
  score.words = total.counts.words;
  score.chars = total.counts.chars;
  score.bytes = total.counts.bytes;
  score.dropped_chars = total.counts.dropped_chars;
  score.dropped_bytes = total.counts.dropped_bytes;
  score.scored_chars = total.scored_chars;
  score.scored_bytes = total.scored_bytes;
  score.nats = total.nats;
  score.bits = total.nats / std::log(2.0);
  score.bits_per_byte = ratio(score.bits, total.scored_bytes);
  score.bits_per_char = ratio(score.bits, total.scored_chars);
  score.bits_per_token = ratio(score.bits, total.scored_tokens);
  const double mean = ratio(total.nats, total.scored_tokens);
  score.perplexity = mean > kLargestMean ? HUGE_VAL : std::exp(mean);
  return score;
}

void score(xlr_model* model, const Document& document, const xlr_score_options* given, xlr_scores_function take,
           void* user, xlr_document_score* total) {
  require(model != nullptr, "model is NULL.");
  require(total == nullptr || total->size >= sizeof total->size,
          "total without its size; begin with XLR_DOCUMENT_SCORE_INIT.");
  const xlr_score_options chosen = options_of(given, XLR_SCORE_OPTIONS_INIT);
  Model& opened = *model->model;
  const EvaluationSettings evaluation = opened.evaluation(choice_of(opened, chosen.settings, chosen.setting_count));
  ScoreOptions options;
  if (chosen.bos != -1) options.bos = chosen.bos;
  if (chosen.detail != -1) options.detail = chosen.detail;
  const auto show_step = [&](const DocumentScores& scores) {
    if (take == nullptr) return true;
    xlr_scores view = view_of(scores);
    view.starts = scores.starts.data();
    view.ends = scores.ends.data();
    if (options.detail) {
      view.detail = static_cast<std::size_t>(*options.detail);
      view.rank = scores.rank.data();
      view.entropy = scores.entropy.data();
      view.top_ids = scores.top_ids.data();
      view.top_log_probs = scores.top_log_probs.data();
    }
    return take(user, &view) == 0;
  };
  const auto found = score_document(opened, evaluation, document, options, show_step);
  if (!found) throw Stopped();
  if (total != nullptr) {
    xlr_document_score made = public_total(*found);
    made.size = std::min(total->size, sizeof made);
    std::memcpy(total, &made, made.size);
  }
}

}  // namespace

const char* xlr_version(void) { return XLRUNTIME_VERSION; }

void xlr_free(void* buffer) { std::free(buffer); }

xlr_status xlr_load(const char* folder, const xlr_load_options* options, xlr_model** model) {
  return guarded([&] {
    require(folder != nullptr && model != nullptr, "folder or model is NULL.");
    const xlr_load_options chosen = options_of(options, XLR_LOAD_OPTIONS_INIT);
    if (chosen.threads < 0) {
      throw Error(ErrorCode::option, "threads is " + std::to_string(chosen.threads) + ", at least 0 is needed.");
    }
    const Onnxruntime& ort = Onnxruntime::load(chosen.onnxruntime == nullptr ? "" : chosen.onnxruntime);
    const SessionOptions sessions{chosen.threads, chosen.kernels != 0};
    auto opened = std::make_shared<Model>(folder, ort, sessions, chosen.check_files != 0);
    *model = new xlr_model(std::move(opened));
  });
}

void xlr_model_close(xlr_model* model) { delete model; }

const xlr_model_info* xlr_model_get_info(const xlr_model* model) {
  return model == nullptr ? nullptr : &model->info.info;
}

xlr_status xlr_encode(const xlr_model* model, const char* text, size_t size, int64_t** ids, size_t* count) {
  return guarded([&] {
    require(model != nullptr && ids != nullptr && count != nullptr, "model, ids or count is NULL.");
    const Ids found = model->model->tokenizer().encode(text_of(text, size));
    *ids = copy_of(found.data(), found.size());
    *count = found.size();
  });
}

xlr_status xlr_decode(const xlr_model* model, const int64_t* ids, size_t count, char** text, size_t* size) {
  return guarded([&] {
    require(model != nullptr && text != nullptr && size != nullptr, "model, text or size is NULL.");
    const Ids given = ids_of(ids, count);
    check_ids(given.data(), given.size(), model->model->bundle().vocab_size, "the ids");
    const std::string found = model->model->tokenizer().decode(given);
    *text = copy_of(found.data(), found.size(), 1);
    *size = found.size();
  });
}

xlr_status xlr_score_text(xlr_model* model, const char* text, size_t size, const xlr_score_options* options,
                          xlr_scores_function take, void* user, xlr_document_score* total) {
  return guarded([&] {
    Document document{"the text", text_of(text, size), std::nullopt, nullptr, 0};
    score(model, document, options, take, user, total);
  });
}

xlr_status xlr_score_file(xlr_model* model, const char* path, const xlr_score_options* options,
                          xlr_scores_function take, void* user, xlr_document_score* total) {
  return guarded([&] {
    require(path != nullptr, "path is NULL.");
    Document document{one_line(path), std::nullopt, path, nullptr, 0};
    score(model, document, options, take, user, total);
  });
}

xlr_status xlr_score_ids(xlr_model* model, const int64_t* ids, size_t count, const xlr_score_options* options,
                         xlr_scores_function take, void* user, xlr_document_score* total) {
  return guarded([&] {
    require_ids(ids, count);
    Document document{"the ids", std::nullopt, std::nullopt, ids, count};
    score(model, document, options, take, user, total);
  });
}

xlr_status xlr_generate(xlr_model* model, const int64_t* prompt, size_t count, const xlr_setting* settings,
                        size_t setting_count, size_t max_tokens, const xlr_sampling* sampling, xlr_token_function take,
                        void* user) {
  return guarded([&] {
    require(model != nullptr, "model is NULL.");
    Model& opened = *model->model;
    const EvaluationSettings evaluation = opened.evaluation(choice_of(opened, settings, setting_count));
    const Ids ids = ids_of(prompt, count);
    const Sampling rule = sampling_of(sampling);
    if (evaluation.whole()) {
      generate_whole(opened, evaluation, ids, max_tokens, rule, token_function(take, user));
    } else {
      Stream(model->model, evaluation, 0).generate(ids, max_tokens, rule, token_function(take, user));
    }
  });
}
