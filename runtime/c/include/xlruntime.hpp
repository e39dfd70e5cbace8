// The C interface (xlruntime.h) for C++: handles that close themselves, and exceptions in place of codes.
//
//     xlr::Model model("bundle");
//     xlr::Stream stream = model.stream();
//     for (float log_prob : stream.feed("Call me Ishmael. ").log_probs()) ...
//
// Functions that can fail throw xlr::Error. Everything is in this header, so C++ types never cross the border of the
// library, and any compiler of C++17 can use it.
#ifndef XLRUNTIME_HPP
#define XLRUNTIME_HPP

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "xlruntime.h"

namespace xlr {

class Error : public std::runtime_error {
 public:
  explicit Error(xlr_status status)
      : std::runtime_error(xlr_error_text()), status_(status), hint_(xlr_error_hint()) {}

  xlr_status status() const { return status_; }
  std::string code() const { return xlr_error_code(status_); }  // such as "bundle_format"
  const std::string& hint() const { return hint_; }

 private:
  xlr_status status_;
  std::string hint_;
};

inline void check(xlr_status status) {
  if (status != XLR_OK) throw Error(status);
}

// Consecutive numbers that belong to a stream or to a step: valid until its next call, or until the function returns.
template <class T>
class View {
 public:
  View(const T* first, std::size_t count) : first_(first), count_(first == nullptr ? 0 : count) {}

  const T* begin() const { return first_; }
  const T* end() const { return first_ + count_; }
  std::size_t size() const { return count_; }
  const T& operator[](std::size_t i) const { return first_[i]; }

 private:
  const T* first_;
  std::size_t count_;
};

// Scores of consecutive tokens; see xlr_scores.
class Scores {
 public:
  explicit Scores(const xlr_scores& scores) : scores_(&scores) {}

  std::size_t size() const { return scores_->count; }
  View<std::int64_t> index() const { return {scores_->index, size()}; }
  View<std::int64_t> tokens() const { return {scores_->tokens, size()}; }
  View<float> log_probs() const { return {scores_->log_probs, size()}; }
  View<std::int64_t> context() const { return {scores_->context, size()}; }
  View<std::int64_t> starts() const { return {scores_->starts, size()}; }
  View<std::int64_t> ends() const { return {scores_->ends, size()}; }
  std::size_t top() const { return scores_->top; }
  View<std::int64_t> rank() const { return {scores_->rank, size()}; }
  View<double> entropy() const { return {scores_->entropy, size()}; }
  View<std::int64_t> top_ids() const { return {scores_->top_ids, size() * top()}; }
  View<double> top_log_probs() const { return {scores_->top_log_probs, size() * top()}; }

 private:
  const xlr_scores* scores_;
};

// A tensor of a step model in a vector of the caller, which must outlive it.
template <class T>
xlr_tensor tensor(const char* name, std::vector<T>& values) {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8, "vectors of bool have no data");
  constexpr const char* kSigned[] = {"int8", "int16", "", "int32", "", "", "", "int64"};
  constexpr const char* kUnsigned[] = {"uint8", "uint16", "", "uint32", "", "", "", "uint64"};
  const char* const whole = (std::is_signed_v<T> ? kSigned : kUnsigned)[sizeof(T) - 1];
  const char* const dtype = std::is_integral_v<T> ? whole : sizeof(T) == 4 ? "float32" : "float64";
  return {name, dtype, values.data(), values.size() * sizeof(T)};
}

using Ids = std::vector<std::int64_t>;

// Settings of an evaluation; 0 is the bundle's own.
inline xlr_settings settings(std::int64_t segment_len = 0, std::int64_t mem_len = 0) {
  return {sizeof(xlr_settings), segment_len, mem_len};
}
inline xlr_load_options load_options() { return XLR_LOAD_OPTIONS_INIT; }
inline xlr_score_options score_options() { return XLR_SCORE_OPTIONS_INIT; }
inline xlr_sampling sampling() { return XLR_SAMPLING_INIT; }

namespace internal {

// A function of the caller, called from C. An exception in it stops the call, and is thrown again after it.
template <class Argument>
class Caller {
 public:
  explicit Caller(std::function<bool(Argument)> function) : function_(std::move(function)) {}

  int operator()(Argument argument) noexcept {
    try {
      stopped_ = !function_(argument);
    } catch (...) {
      thrown_ = std::current_exception();
      stopped_ = true;
    }
    return stopped_ ? 1 : 0;
  }

  void finish(xlr_status status) const {
    if (thrown_) std::rethrow_exception(thrown_);
    if (!(stopped_ && status == XLR_ERROR_STOPPED)) check(status);
  }

 private:
  std::function<bool(Argument)> function_;
  bool stopped_ = false;
  std::exception_ptr thrown_;
};

inline int take_scores(void* user, const xlr_scores* scores) {
  return (*static_cast<Caller<Scores>*>(user))(Scores(*scores));
}

inline int take_token(void* user, std::int64_t token) { return (*static_cast<Caller<std::int64_t>*>(user))(token); }

}  // namespace internal

// One document with its memory. Only one thread at a time may use it.
class Stream {
 public:
  explicit Stream(xlr_stream* stream) : stream_(stream) {}

  Scores feed(std::string_view text) { return scores(xlr_stream_feed_text, text.data(), text.size()); }
  Scores feed(const Ids& ids) { return scores(xlr_stream_feed_ids, ids.data(), ids.size()); }

  // Take the tokens of the held text, as if it ended here. `preview` returns the scores, and changes nothing.
  Scores flush() { return scores(xlr_stream_flush); }
  Scores preview() { return scores(xlr_stream_preview); }

  // The scores of a continuation, as if the text ended after it, without changing the stream.
  Scores score_continuation(std::string_view text) { return scores(xlr_stream_score_text, text.data(), text.size()); }
  Scores score_continuation(const Ids& ids) { return scores(xlr_stream_score_ids, ids.data(), ids.size()); }

  // Continue the document after `prompt`; `take` gets each drawn token, and returns whether to go on.
  void generate(std::size_t max_tokens, std::function<bool(std::int64_t)> take, const xlr_sampling& rule = sampling(),
                const Ids& prompt = {}) {
    internal::Caller<std::int64_t> caller(std::move(take));
    caller.finish(xlr_stream_generate(stream_.get(), prompt.data(), prompt.size(), max_tokens, &rule,
                                      internal::take_token, &caller));
  }

  // Take steps of a step model; see xlr_stream_run.
  template <std::size_t n, std::size_t m>
  void run(const xlr_tensor (&inputs)[n], const xlr_tensor (&outputs)[m], std::size_t steps = 1) {
    check(xlr_stream_run(stream_.get(), inputs, n, outputs, m, steps));
  }
  void reset_row(std::size_t row) { check(xlr_stream_reset_row(stream_.get(), row)); }
  std::size_t rows() const { return xlr_stream_rows(stream_.get()); }
  std::int64_t row_position(std::size_t row) const { return xlr_stream_row_position(stream_.get(), row); }

  Stream fork() const {
    xlr_stream* twin = nullptr;
    check(xlr_stream_fork(stream_.get(), &twin));
    return Stream(twin);
  }
  void reset() { check(xlr_stream_reset(stream_.get())); }
  void save(const std::string& file) const { check(xlr_stream_save(stream_.get(), file.c_str())); }

  std::int64_t position() const { return xlr_stream_position(stream_.get()); }
  std::int64_t pending() const { return xlr_stream_pending(stream_.get()); }
  std::size_t memory_bytes() const { return xlr_stream_memory_bytes(stream_.get()); }
  std::int64_t unsettled_cuts() const { return xlr_stream_unsettled_cuts(stream_.get()); }
  std::int64_t resets() const { return xlr_stream_resets(stream_.get()); }
  xlr_stream* get() const { return stream_.get(); }

 private:
  struct Close {
    void operator()(xlr_stream* stream) const { xlr_stream_close(stream); }
  };

  Scores scores(xlr_status (*function)(xlr_stream*, const xlr_scores**)) {
    const xlr_scores* found = nullptr;
    check(function(stream_.get(), &found));
    return Scores(*found);
  }

  template <class Item>
  Scores scores(xlr_status (*function)(xlr_stream*, const Item*, std::size_t, const xlr_scores**), const Item* items,
                std::size_t count) {
    const xlr_scores* found = nullptr;
    check(function(stream_.get(), items, count, &found));
    return Scores(*found);
  }

  std::unique_ptr<xlr_stream, Close> stream_;
};

// An open bundle. Any number of threads may share it.
class Model {
 public:
  explicit Model(const std::string& folder, const xlr_load_options& options = load_options()) {
    xlr_model* model = nullptr;
    check(xlr_load(folder.c_str(), &options, &model));
    model_.reset(model);
  }

  const xlr_model_info& info() const { return *xlr_model_get_info(model_.get()); }

  // Compare scores with the known answers of the bundle; a certain difference is an Error.
  xlr_check_result check_answers() {
    xlr_check_result result = XLR_CHECK_RESULT_INIT;
    check(xlr_check(model_.get(), &result));
    return result;
  }

  Stream stream(const xlr_settings& chosen = settings(), std::int64_t capacity = 0) {
    xlr_stream* stream = nullptr;
    check(xlr_stream_open(model_.get(), &chosen, capacity, &stream));
    return Stream(stream);
  }
  Stream stream_of_rows(std::size_t rows = 0) {
    xlr_stream* stream = nullptr;
    check(xlr_stream_open_rows(model_.get(), rows, &stream));
    return Stream(stream);
  }
  Stream restore(const std::string& file, std::int64_t capacity = 0) {
    xlr_stream* stream = nullptr;
    check(xlr_stream_restore(model_.get(), file.c_str(), capacity, &stream));
    return Stream(stream);
  }

  // Score a text or a file; `take` gets the scores of each step, and returns whether to go on. If it stops, the total
  // is empty.
  xlr_document_score score(std::string_view text, const xlr_score_options& options = score_options(),
                           std::function<bool(Scores)> take = always) {
    xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
    internal::Caller<Scores> caller(std::move(take));
    caller.finish(
        xlr_score_text(model_.get(), text.data(), text.size(), &options, internal::take_scores, &caller, &total));
    return total;
  }
  xlr_document_score score_file(const std::string& path, const xlr_score_options& options = score_options(),
                                std::function<bool(Scores)> take = always) {
    xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
    internal::Caller<Scores> caller(std::move(take));
    caller.finish(xlr_score_file(model_.get(), path.c_str(), &options, internal::take_scores, &caller, &total));
    return total;
  }

  Ids encode(std::string_view text) const {
    std::int64_t* ids = nullptr;
    std::size_t count = 0;
    check(xlr_encode(model_.get(), text.data(), text.size(), &ids, &count));
    const std::unique_ptr<std::int64_t, Free> held(ids);
    return Ids(ids, ids + count);
  }
  std::string decode(const Ids& ids) const {
    char* text = nullptr;
    std::size_t size = 0;
    check(xlr_decode(model_.get(), ids.data(), ids.size(), &text, &size));
    const std::unique_ptr<char, Free> held(text);
    return std::string(text, size);
  }
  xlr_model* get() const { return model_.get(); }

 private:
  struct Close {
    void operator()(xlr_model* model) const { xlr_model_close(model); }
  };
  struct Free {
    void operator()(void* buffer) const { xlr_free(buffer); }
  };

  static bool always(Scores) { return true; }

  std::unique_ptr<xlr_model, Close> model_;
};

}  // namespace xlr

#endif
