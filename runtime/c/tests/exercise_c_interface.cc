// Call every function of the C interface, also with wrong arguments and from several threads: for sanitizers.
//
//     exercise_c_interface BUNDLE FOLDER
//
// FOLDER takes the files that it writes. It prints what differs from what is expected, and returns 1 if anything does.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "xlruntime.h"

namespace {

std::atomic<int> failures{0};

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s (%s)\n", what, xlr_error_text());
  ++failures;
}

std::vector<int64_t> ids_of(std::size_t n, unsigned seed) {
  std::vector<int64_t> ids(n);
  for (auto& id : ids) id = static_cast<int64_t>((seed = seed * 1664525u + 1013904223u) >> 24 & 15);
  return ids;
}

int add_token(void* user, int64_t token) {
  static_cast<std::vector<int64_t>*>(user)->push_back(token);
  return 0;
}

int count_and_stop(void* user, const xlr_scores* scores) {
  *static_cast<std::size_t*>(user) += scores->count;
  return 1;
}

int count(void* user, const xlr_scores* scores) {
  *static_cast<std::size_t*>(user) += scores->count;
  return 0;
}

std::vector<float> feed(xlr_stream* stream, const std::vector<int64_t>& ids, const char* what) {
  const xlr_scores* scores = nullptr;
  expect(xlr_stream_feed_ids(stream, ids.data(), ids.size(), &scores) == XLR_OK, what);
  return scores == nullptr ? std::vector<float>()
                           : std::vector<float>(scores->log_probs, scores->log_probs + scores->count);
}

void streams(xlr_model* model, const std::string& folder, unsigned seed) {
  const std::string file = folder + "/" + std::to_string(seed) + ".state";
  xlr_stream *stream = nullptr, *twin = nullptr, *restored = nullptr, *wide = nullptr;
  expect(xlr_stream_open(model, nullptr, 0, &stream) == XLR_OK, "open");
  if (stream == nullptr) return;
  feed(stream, ids_of(60, seed), "feed");
  const xlr_scores* scores = nullptr;
  const auto more = ids_of(20, seed + 1);
  expect(xlr_stream_score_ids(stream, more.data(), more.size(), &scores) == XLR_OK, "continuation");
  expect(xlr_stream_preview(stream, &scores) == XLR_OK && scores->count == 0, "preview");
  expect(xlr_stream_flush(stream, nullptr) == XLR_OK && xlr_stream_unsettled_cuts(stream) == 0, "flush");
  expect(xlr_stream_fork(stream, &twin) == XLR_OK, "fork");
  expect(xlr_stream_save(stream, file.c_str()) == XLR_OK, "save");
  expect(xlr_stream_restore(model, file.c_str(), 0, &restored) == XLR_OK, "restore");
  expect(xlr_stream_restore(model, file.c_str(), 100000, &wide) == XLR_OK, "restore with more slots");
  const auto expected = feed(stream, more, "feed the stream");
  expect(twin != nullptr && feed(twin, more, "feed the fork") == expected, "the fork differs");
  expect(restored != nullptr && feed(restored, more, "feed the restored") == expected, "the restored stream differs");
  std::vector<int64_t> drawn;
  xlr_sampling sampling = XLR_SAMPLING_INIT;
  sampling.top_k = 5;
  sampling.top_p = 0.9;
  sampling.min_p = 0.01;
  sampling.repetition_penalty = 1.2;
  expect(xlr_stream_generate(stream, nullptr, 0, 10, &sampling, add_token, &drawn) == XLR_OK, "generate");
  expect(drawn.size() == 10 && xlr_stream_position(stream) == 90, "10 tokens were not drawn");
  expect(xlr_stream_reset(stream) == XLR_OK && xlr_stream_pending(stream) == -1, "reset");
  expect(xlr_stream_memory_bytes(stream) > 0 && xlr_stream_resets(stream) == 0, "memory");
  for (xlr_stream* each : {stream, twin, restored, wide, static_cast<xlr_stream*>(nullptr)}) xlr_stream_close(each);
}

void documents(xlr_model* model) {
  const auto ids = ids_of(190, 3);  // one of the bundles reads no more than 200 tokens
  xlr_score_options options = XLR_SCORE_OPTIONS_INIT;
  xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
  std::size_t scored = 0;
  options.top = 2;
  options.bos = 1;
  expect(xlr_score_ids(model, ids.data(), ids.size(), &options, count, &scored, &total) == XLR_OK, "score ids");
  expect(scored == ids.size() && total.scored_tokens == 190 && std::isfinite(total.nats), "the total is wrong");
  expect(xlr_score_ids(model, ids.data(), ids.size(), nullptr, nullptr, nullptr, nullptr) == XLR_OK,
         "score without results");
  expect(xlr_score_ids(model, ids.data(), ids.size(), nullptr, count_and_stop, &scored, nullptr) == XLR_ERROR_STOPPED,
         "stop");
}

void errors(xlr_model* model, const std::string& folder) {
  const int64_t wrong[] = {1, 1000000};
  xlr_settings settings = XLR_SETTINGS_INIT, unsized_settings{};
  settings.segment_len = -5;
  xlr_stream* stream = nullptr;
  xlr_model* other = nullptr;
  xlr_sampling sampling = XLR_SAMPLING_INIT;
  expect(xlr_load((folder + "/missing").c_str(), nullptr, &other) == XLR_ERROR_BUNDLE_NOT_FOUND, "no bundle");
  expect(xlr_load(nullptr, nullptr, &other) == XLR_ERROR_ARGUMENT, "no folder");
  expect(xlr_stream_open(model, &settings, 0, &stream) == XLR_ERROR_OPTION, "a wrong setting");
  expect(xlr_stream_open(model, &unsized_settings, 0, &stream) == XLR_ERROR_ARGUMENT, "settings without a size");
  expect(xlr_stream_open(model, nullptr, -1, &stream) == XLR_ERROR_OPTION, "a negative capacity");
  expect(xlr_stream_open(model, nullptr, INT64_MIN, &stream) == XLR_ERROR_OPTION, "the least capacity");
  expect(xlr_stream_restore(model, (folder + "/missing").c_str(), 0, &stream) == XLR_ERROR_FILE, "no state");
  std::ofstream(folder + "/broken.state") << "not a state";
  expect(xlr_stream_restore(model, (folder + "/broken.state").c_str(), 0, &stream) == XLR_ERROR_STATE_DAMAGED,
         "a broken state");
  expect(xlr_score_file(model, (folder + "/missing").c_str(), nullptr, nullptr, nullptr, nullptr) != XLR_OK, "no file");
  expect(xlr_score_ids(model, wrong, 2, nullptr, nullptr, nullptr, nullptr) == XLR_ERROR_TOKEN, "a wrong id");
  expect(xlr_stream_open(model, nullptr, 0, &stream) == XLR_OK, "open");
  expect(xlr_stream_feed_ids(stream, wrong, 2, nullptr) == XLR_ERROR_TOKEN, "a wrong id in a stream");
  expect(xlr_stream_feed_ids(stream, nullptr, 2, nullptr) == XLR_ERROR_ARGUMENT, "ids that are NULL");
  expect(xlr_stream_feed_ids(stream, nullptr, 0, nullptr) == XLR_OK, "no ids");
  expect(xlr_stream_feed_ids(stream, wrong, SIZE_MAX, nullptr) == XLR_ERROR_ARGUMENT, "too many ids");
  expect(xlr_stream_feed_text(stream, "a", SIZE_MAX, nullptr) == XLR_ERROR_ARGUMENT, "too long a text");
  expect(xlr_score_ids(model, wrong, SIZE_MAX, nullptr, nullptr, nullptr, nullptr) == XLR_ERROR_ARGUMENT,
         "too many ids of a document");
  expect(xlr_stream_save(stream, folder.c_str()) == XLR_ERROR_FILE, "a folder instead of a file");
  expect(xlr_stream_save(stream, (folder + "/missing/file").c_str()) == XLR_ERROR_FILE, "no folder");
  expect(xlr_stream_generate(stream, nullptr, 0, 1, nullptr, add_token, nullptr) == XLR_ERROR_TEXT, "no prompt");
  expect(xlr_stream_generate(stream, wrong, 1, 1, nullptr, nullptr, nullptr) == XLR_ERROR_ARGUMENT, "no function");
  sampling.top_p = 2;
  expect(xlr_stream_generate(stream, wrong, 1, 1, &sampling, add_token, nullptr) == XLR_ERROR_OPTION, "a wrong rule");
  sampling.top_p = 1;
  sampling.repetition_window = 0;
  expect(xlr_stream_generate(stream, wrong, 1, 1, &sampling, add_token, nullptr) == XLR_ERROR_OPTION, "no window");
  expect(xlr_stream_flush(nullptr, nullptr) == XLR_ERROR_ARGUMENT, "no stream");
  sampling.size = 0;
  expect(xlr_stream_generate(stream, wrong, 1, 1, &sampling, add_token, nullptr) == XLR_ERROR_ARGUMENT, "no size");
  expect(std::strcmp(xlr_error_code(XLR_ERROR_TOO_LONG), "too_long") == 0, "the word of a code");
  expect(std::strlen(xlr_error_text()) > 0 && xlr_error_hint() != nullptr, "an error has a text");
  xlr_stream_close(stream);
}

void texts(xlr_model* model) {
  const char text[] = "a b\xc3\xa9";
  int64_t* ids = nullptr;
  char* again = nullptr;
  std::size_t n = 0, size = 0;
  if (std::strcmp(xlr_model_get_info(model)->tokenizer, "bytes") != 0) return;
  expect(xlr_encode(model, text, sizeof text - 1, &ids, &n) == XLR_OK && n == 5, "encode");
  expect(xlr_decode(model, ids, n, &again, &size) == XLR_OK && std::strcmp(text, again) == 0, "decode");
  xlr_free(ids);
  xlr_free(again);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[2];
  xlr_model* model = nullptr;
  xlr_load_options options = XLR_LOAD_OPTIONS_INIT;
  options.threads = 1;
  expect(xlr_load(argv[1], &options, &model) == XLR_OK, "load");
  if (model == nullptr) return 1;
  xlr_model* pinned = nullptr;
  const std::string digest = xlr_model_get_info(model)->digest;
  options.digest = digest.c_str();
  expect(xlr_load(argv[1], &options, &pinned) == XLR_OK, "load with the digest");
  xlr_model_close(pinned);
  options.digest = "0";
  expect(xlr_load(argv[1], &options, &pinned) == XLR_ERROR_BUNDLE_MISMATCH, "another digest");
  texts(model);
  documents(model);
  errors(model, folder);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back([&, seed] { streams(model, folder, 10 * seed); });
  for (auto& thread : threads) thread.join();
  xlr_stream* last = nullptr;
  expect(xlr_stream_open(model, nullptr, 0, &last) == XLR_OK, "open the last");
  xlr_model_close(model);  // the stream keeps what it needs
  feed(last, ids_of(30, 1), "feed after the model was closed");
  xlr_stream_close(last);
  expect(xlr_stream_position(nullptr) == 0 && xlr_stream_pending(nullptr) == -1, "the place of no stream");
  expect(xlr_stream_memory_bytes(nullptr) == 0 && xlr_stream_resets(nullptr) == 0, "the memory of no stream");
  expect(xlr_model_get_info(nullptr) == nullptr, "the information of no model");
  xlr_model_close(nullptr);
  return failures == 0 ? 0 : 1;
}
