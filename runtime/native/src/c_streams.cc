// Streams in the C interface.
#include "c_handles.h"

using namespace xlruntime;

namespace {

void show(xlr_stream& stream, Scores scores, const xlr_scores** out) {
  stream.scores = std::move(scores);
  stream.shown = view_of(stream.scores);
  if (out != nullptr) *out = &stream.shown;
}

}  // namespace

xlr_status xlr_stream_open(xlr_model* model, const xlr_setting* settings, size_t setting_count, int64_t capacity,
                           xlr_stream** stream) {
  return guarded([&] {
    require(model != nullptr && stream != nullptr, "model or stream is NULL.");
    const Model& opened = *model->model;
    const EvaluationSettings evaluation = opened.evaluation(choice_of(opened, settings, setting_count));
    *stream = new xlr_stream{std::make_unique<Stream>(model->model, evaluation, capacity), {}};
  });
}

void xlr_stream_close(xlr_stream* stream) { delete stream; }

xlr_status xlr_stream_feed_text(xlr_stream* stream, const char* text, size_t size, const xlr_scores** scores) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    show(*stream, stream->stream->feed(stream->stream->ids_of(text_of(text, size))), scores);
  });
}

xlr_status xlr_stream_feed_ids(xlr_stream* stream, const int64_t* ids, size_t count, const xlr_scores** scores) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    show(*stream, stream->stream->feed(ids_of(ids, count)), scores);
  });
}

xlr_status xlr_stream_score_text(xlr_stream* stream, const char* text, size_t size, const xlr_scores** scores) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    show(*stream, stream->stream->score_continuation(stream->stream->ids_of(text_of(text, size))), scores);
  });
}

xlr_status xlr_stream_score_ids(xlr_stream* stream, const int64_t* ids, size_t count, const xlr_scores** scores) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    show(*stream, stream->stream->score_continuation(ids_of(ids, count)), scores);
  });
}

xlr_status xlr_stream_generate(xlr_stream* stream, const int64_t* prompt, size_t count, size_t max_tokens,
                               const xlr_sampling* sampling, xlr_token_function take, void* user) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    stream->stream->generate(ids_of(prompt, count), max_tokens, sampling_of(sampling), token_function(take, user));
  });
}

xlr_status xlr_stream_fork(const xlr_stream* stream, xlr_stream** twin) {
  return guarded([&] {
    require(stream != nullptr && twin != nullptr, "stream or twin is NULL.");
    *twin = new xlr_stream{stream->stream->fork(), {}};
  });
}

xlr_status xlr_stream_reset(xlr_stream* stream) {
  return guarded([&] {
    require(stream != nullptr, "stream is NULL.");
    stream->stream->reset();
  });
}

xlr_status xlr_stream_save(const xlr_stream* stream, const char* file) {
  return guarded([&] {
    require(stream != nullptr && file != nullptr, "stream or file is NULL.");
    stream->stream->save(file);
  });
}

xlr_status xlr_stream_restore(xlr_model* model, const char* file, int64_t capacity, xlr_stream** stream) {
  return guarded([&] {
    require(model != nullptr && file != nullptr && stream != nullptr, "model, file or stream is NULL.");
    *stream = new xlr_stream{Stream::restore(model->model, file, capacity), {}};
  });
}

int64_t xlr_stream_position(const xlr_stream* stream) { return stream == nullptr ? 0 : stream->stream->position(); }

int64_t xlr_stream_pending(const xlr_stream* stream) {
  return stream == nullptr ? -1 : stream->stream->pending().value_or(-1);
}

size_t xlr_stream_memory_bytes(const xlr_stream* stream) { return stream == nullptr ? 0 : stream->stream->nbytes(); }

int64_t xlr_stream_resets(const xlr_stream* stream) { return stream == nullptr ? 0 : stream->stream->resets(); }
