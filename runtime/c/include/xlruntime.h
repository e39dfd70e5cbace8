/* xlruntime: run bundles of xlexport from C.
 *
 * A bundle is a folder that `xlexport convert` wrote. This library opens it with an ONNX Runtime that it finds when it
 * runs, compares its files with their digests, and gives the same scores, continuations and saved states.
 *
 *     xlr_model *model;
 *     xlr_stream *stream;
 *     const xlr_scores *scores;
 *     if (xlr_load("bundle", NULL, &model) != XLR_OK) { puts(xlr_error_text()); return 1; }
 *     xlr_stream_open(model, NULL, 0, &stream);
 *     xlr_stream_feed_text(stream, text, strlen(text), &scores);
 *
 * Errors. Functions that can fail return a status. `xlr_error_text` has the message of the last one that failed in this
 * thread. After an error, outputs are unchanged unless stated otherwise. No C++ exception leaves this library.
 *
 * Threads. Any number of threads may share a model. Only one thread at a time may use a stream.
 *
 * Ownership. What a function opens, the caller closes. A stream or a model that is NULL is closed without effect. A
 * stream keeps what it needs of its model, so both may be closed in any order. Results of a stream stay valid until its
 * next call.
 *
 * Names of files are in the encoding of the system's own functions: the active code page on Windows, UTF-8 elsewhere.
 *
 * Functions of the caller run in the thread that made the call. They may use the model, but not the stream that calls
 * them, and must not leave with longjmp or an exception.
 *
 * Structs that the caller fills begin with their size. Set it with the _INIT macros.
 *
 * Compatibility. A compiled program runs with every later library whose soname has the same number: libxlruntime.so.0.
 * Such versions only add functions, statuses, and fields at the end of structs. Take unknown statuses for errors, and
 * read structs of the library through its pointers. Structs that come as arrays stay as they are: xlr_setting_info,
 * xlr_tensor_info, xlr_tensor.
 */
#ifndef XLRUNTIME_H
#define XLRUNTIME_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(XLRUNTIME_EXPORTS) /* while the library itself is compiled */
#define XLR_API __declspec(dllexport)
#elif defined(__GNUC__) && !defined(_WIN32)
#define XLR_API __attribute__((visibility("default")))
#else
#define XLR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns: one status for each code of docs/bundle_format.md. */
typedef enum xlr_status {
  XLR_OK = 0,
  XLR_ERROR_BUNDLE_NOT_FOUND = 1, /* the folder or its bundle.json is missing */
  XLR_ERROR_BUNDLE_FORMAT = 2,    /* bundle.json is not one of this format, or requires what this library lacks */
  XLR_ERROR_BUNDLE_DAMAGED = 3,   /* a digest differs, or a listed file is missing */
  XLR_ERROR_BUNDLE_MISMATCH = 4,  /* the digest is not the one that the caller expects */
  XLR_ERROR_BUNDLE_GRAPH = 5,     /* ONNX Runtime cannot load or run a graph, or it is not as bundle.json says */
  XLR_ERROR_STATE_DAMAGED = 6,    /* a file is not a saved stream, or was changed */
  XLR_ERROR_STATE_MISMATCH = 7,   /* a state is of another bundle, version or choice of settings */
  XLR_ERROR_OPTION = 8,           /* a setting or another number is out of range */
  XLR_ERROR_TOKEN = 9,            /* an id is outside the vocabulary */
  XLR_ERROR_TEXT = 10,            /* text cannot be tokenized, or is empty */
  XLR_ERROR_TOO_LONG = 11,        /* a document is longer than the model reads */
  XLR_ERROR_VOCABULARY = 12,      /* a vocabulary is not one */
  XLR_ERROR_ARGUMENT = 13,        /* an argument is NULL, or a size does not fit */
  XLR_ERROR_PROVIDER = 14,        /* ONNX Runtime is missing, too old or cannot be loaded */
  XLR_ERROR_FILE = 15,            /* a file cannot be read or written */
  XLR_ERROR_MEMORY = 16,          /* there is too little memory */
  XLR_ERROR_TIMEOUT = 17,         /* not in this library */
  XLR_ERROR_BUSY = 18,            /* not in this library */
  XLR_ERROR_STOPPED = 19,         /* the caller's function asked to stop */
  XLR_ERROR_RUNTIME = 20,         /* anything else reported on purpose, such as logits that are not finite */
  XLR_ERROR_INTERNAL = 21         /* an error in this library */
} xlr_status;

typedef struct xlr_model xlr_model;   /* an open bundle */
typedef struct xlr_stream xlr_stream; /* one document, or rows of numbers, with memory */

/* Return message and hint of this thread's last error in one line; "" if there was none. Never NULL. The text stays
 * valid until the thread's next failure. */
XLR_API const char* xlr_error_text(void);

/* Return only the hint of the last error; "" if it has none. */
XLR_API const char* xlr_error_hint(void);

/* Return the word for a status in docs/bundle_format.md, such as "bundle_format"; "ok" for XLR_OK. */
XLR_API const char* xlr_error_code(xlr_status status);

/* Return the version of this library. */
XLR_API const char* xlr_version(void);

/* Return the instruction set that this library's kernels use on this processor: avx512, avx2 or base. */
XLR_API const char* xlr_instruction_set(void);

/* Free a buffer that xlr_encode or xlr_decode returned. */
XLR_API void xlr_free(void* buffer);

/* ---- models ---- */

typedef struct xlr_load_options {
  size_t size;
  const char* onnxruntime; /* file of ONNX Runtime's library, 1.24.1 or newer. NULL: the one that the environment
                              variable XLRUNTIME_ONNXRUNTIME names, else the one that the system finds */
  int threads;             /* threads of one step; 0 leaves the choice to ONNX Runtime */
  int check_files;         /* whether the files are compared with their digests. Turn this off only if something else
                              protects the files */
  int kernels;             /* whether this library's kernels compute the bundle's own operators; if not, functions of
                              standard operators do. Results are equal up to rounding */
  const char* digest;      /* SHA-256 that bundle.json must have, which covers all files: 64 lower-case hexadecimal
                              digits; NULL: any */
  int check_once;          /* whether the known answers are compared, as by xlr_check, once on each machine, and the
                              success remembered in ~/.cache/xlexport. If kernels differ, the bundle opens without them,
                              and the model's information has a warning. Other certain differences are
                              XLR_ERROR_BUNDLE_GRAPH */
} xlr_load_options;

#define XLR_LOAD_OPTIONS_INIT {sizeof(xlr_load_options), NULL, 0, 1, 1, NULL, 0}

/* Open the bundle in `folder`. `options` may be NULL for the defaults.
 *
 * ONNX Runtime 1.29 or newer sends data about its use to its maker unless ORT_DISABLE_TELEMETRY is 1. If the variable is
 * not set, the first call sets it, before it loads ONNX Runtime, for the whole process. On POSIX no other thread may
 * use the environment then, so set the variable yourself if one could. In a process that has loaded ONNX Runtime
 * before, the call leaves the environment alone, and calls DisableTelemetryEvents, which stops only part of it. Such a
 * program sets the variable before it loads ONNX Runtime. */
XLR_API xlr_status xlr_load(const char* folder, const xlr_load_options* options, xlr_model** model);

XLR_API void xlr_model_close(xlr_model* model);

/* An evaluation setting that a bundle declares. Its value may be `minimum` to `maximum`, or `off` if `can_be_off`. */
typedef struct xlr_setting_info {
  const char* name;
  const char* meaning; /* one line, with the unit */
  int64_t value;       /* the default; of a boolean 0 or 1 */
  int64_t minimum, maximum, off;
  int is_boolean, can_be_off;
} xlr_setting_info;

/* An input or output of a step model, which maps numbers to numbers. `shape` and `bytes` are of one step of one row. */
typedef struct xlr_tensor_info {
  const char* name;
  const char* dtype; /* float32, bool, int8 to int64 or uint8 to uint64; of outputs also float16, float64 */
  size_t axes;
  const int64_t* shape; /* (axes) */
  size_t bytes;
} xlr_tensor_info;

typedef struct xlr_model_info {
  const char *architecture, *precision;
  const char* tokenizer;   /* bytes, vocabulary, tokenizers, sentencepiece or none; see `reads_text` */
  const char* fingerprint; /* identity of the bundle's numbers, to which saved streams belong */
  const char* digest;      /* SHA-256 of bundle.json, by which an application pins the bundle */
  const char* onnxruntime; /* version of the ONNX Runtime that runs */
  int64_t vocab_size; /* 0: a step model */
  int full_document; /* whether a document is one step: such a bundle has no streams */
  int restart;       /* whether a document that is too long for the model begins again */
  size_t setting_count;
  const xlr_setting_info* settings; /* segment_len first */
  int reads_text; /* whether this library has the tokenizer; if not, give token ids */
  int adds_begin; /* whether `begin` stands before each text by the tokenizer's own rule */
  int64_t begin;  /* id of the token that begins a text; -1: none */
  const char* warning; /* what check_once found, in one line; "": nothing */
  size_t input_count; /* of a step model; others have none */
  const xlr_tensor_info* inputs;
  size_t output_count;
  const xlr_tensor_info* outputs;
} xlr_model_info;

/* Return what is known about a model. It is valid until the model is closed. NULL for NULL. */
XLR_API const xlr_model_info* xlr_model_get_info(const xlr_model* model);

/* The result of xlr_check. */
typedef struct xlr_check_result {
  size_t size;
  int known;      /* whether the bundle brings known answers; bundles of earlier versions do not */
  int passed;     /* whether this machine computes what the trained model did, up to rounding */
  int certain;    /* whether a difference is an error. If not, rounding alone may choose another bucket or integer */
  int64_t tokens; /* scores that were compared, or steps of a step model */
  double largest; /* the largest difference, divided by its bound */
} xlr_check_result;

#define XLR_CHECK_RESULT_INIT {sizeof(xlr_check_result), 0, 0, 0, 0, 0.0}

/* Compare scores on this machine, or the outputs of a step model, with the known answers that a bundle brings. A certain
 * difference is XLR_ERROR_BUNDLE_GRAPH, and the text of the error names the first token or step that differs; open the
 * bundle without kernels then, if they computed. `result` may be NULL. */
XLR_API xlr_status xlr_check(xlr_model* model, xlr_check_result* result);

/* Tokenize a whole text of `size` bytes, UTF-8 unless tokens are bytes. Free *ids with xlr_free. */
XLR_API xlr_status xlr_encode(const xlr_model* model, const char* text, size_t size, int64_t** ids, size_t* count);

/* Return the text of token ids, with a final zero byte that *size does not count. Free *text with xlr_free. Without a
 * tokenizer that this library has, both fail with XLR_ERROR_TEXT. */
XLR_API xlr_status xlr_decode(const xlr_model* model, const int64_t* ids, size_t count, char** text, size_t* size);

/* Settings that a caller may choose; 0 is the bundle's own. `xlexport configure` writes a bundle with others. */
typedef struct xlr_settings {
  size_t size;
  int64_t segment_len; /* tokens in one step; the longest document if a document is one step */
  int64_t mem_len;     /* rows of memory that a layer keeps, in bundles with this setting */
} xlr_settings;

#define XLR_SETTINGS_INIT {sizeof(xlr_settings), 0, 0}

/* ---- scores ---- */

/* Scores of consecutive tokens. Pointers are NULL if there is nothing to point to. */
typedef struct xlr_scores {
  size_t count;           /* tokens, n */
  const int64_t* index;   /* (n) places of the tokens in the document, from 0 */
  const int64_t* tokens;  /* (n) their ids */
  const float* log_probs; /* (n) natural logarithms of their probabilities */
  const int64_t* context; /* (n) number of tokens that each prediction attended to */
  const int64_t* starts;  /* (n) where each token begins in a document that is scored whole, in bytes or characters */
  const int64_t* ends;    /* (n) and where it ends */
  size_t top;             /* number k of likeliest tokens in the last two */
  const int64_t* rank;    /* (n) rank of each token; 1 is the likeliest. NULL unless `top` was given */
  const double* entropy;  /* (n) entropy of each prediction, in nats */
  const int64_t* top_ids; /* (n, k) the likeliest tokens, best first */
  const double* top_log_probs; /* (n, k) natural logarithms of their probabilities */
} xlr_scores;

/* The score of a whole document. Ratios are NaN if the divisor is 0. */
typedef struct xlr_document_score {
  size_t size;
  int64_t tokens, scored_tokens, unknown_tokens;
  int64_t words, chars, bytes; /* 0 if the document was given as token ids */
  int64_t dropped_chars, dropped_bytes, scored_chars, scored_bytes;
  double nats, bits;
  double bits_per_byte, bits_per_char, bits_per_token, perplexity;
} xlr_document_score;

#define XLR_DOCUMENT_SCORE_INIT {sizeof(xlr_document_score), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0}

typedef struct xlr_score_options {
  size_t size;
  const xlr_settings* settings; /* NULL: the bundle's */
  int64_t bos; /* id of a token to read before the document, so that its first token has a score;
                  -1: the begin token of the tokenizer before a text, if its own rule puts it there; -2: none */
  int top;     /* likeliest tokens to list, with rank and entropy: 0 to what the bundle lists; -1: none, and no rank.
                  Its name was detail before this version. */
} xlr_score_options;

#define XLR_SCORE_OPTIONS_INIT {sizeof(xlr_score_options), NULL, -1, -1}

/* Take the scores of a step. Pointers are valid until it returns. Return 0 to go on; anything else stops. */
typedef int (*xlr_scores_function)(void* user, const xlr_scores* scores);

/* Score a document in segments. `options`, `take` and `total` may be NULL. */
XLR_API xlr_status xlr_score_text(xlr_model* model, const char* text, size_t size, const xlr_score_options* options,
                                  xlr_scores_function take, void* user, xlr_document_score* total);
XLR_API xlr_status xlr_score_file(xlr_model* model, const char* path, const xlr_score_options* options,
                                  xlr_scores_function take, void* user, xlr_document_score* total);
XLR_API xlr_status xlr_score_ids(xlr_model* model, const int64_t* ids, size_t count, const xlr_score_options* options,
                                 xlr_scores_function take, void* user, xlr_document_score* total);

/* ---- generation ---- */

/* The rule for drawing tokens: from probabilities at `temperature`, cut by `top_k`, `top_p` and `min_p`. */
typedef struct xlr_sampling {
  size_t size;
  double temperature; /* divisor of the logits; 0 takes the likeliest token */
  int64_t top_k;      /* draw only from the k likeliest tokens; 0: from all */
  double top_p;       /* draw only from the likeliest tokens that together reach this probability; 1: from all */
  uint64_t seed;      /* of the random draws, which are those of Python with the same seed */
  int has_seed;       /* 0: another seed for each run */
  double min_p;       /* draw only from tokens at least this many times as likely as the likeliest one; 0: from all */
  double repetition_penalty; /* divisor of the positive logits of recent tokens, and factor of their negative ones; above
                                1, tokens repeat less often */
  int64_t repetition_window; /* tokens that count as recent, of the prompt and of what was drawn after it */
  int ignore_eos;            /* go on after a token that ends a text */
} xlr_sampling;

#define XLR_SAMPLING_INIT {sizeof(xlr_sampling), 1.0, 0, 1.0, 0, 0, 0.0, 1.0, 64, 0}

/* Take a token that was drawn. Return 0 to go on; anything else stops after this token. */
typedef int (*xlr_token_function)(void* user, int64_t token);

/* Continue a prompt by up to `max_tokens` tokens. `settings` and `sampling` may be NULL for the defaults; `take` must
 * be given. Generation ends after a token that ends a text, such as <|endoftext|>, unless `ignore_eos` is set: `take`
 * does not get this token. Ids that the tokenizer lacks are not drawn. */
XLR_API xlr_status xlr_generate(xlr_model* model, const int64_t* prompt, size_t count, const xlr_settings* settings,
                                size_t max_tokens, const xlr_sampling* sampling, xlr_token_function take, void* user);

/* ---- streams ---- */

/* Open a stream. `settings` may be NULL. `capacity` is the number of slots of the largest ring; 0 is just enough. */
XLR_API xlr_status xlr_stream_open(xlr_model* model, const xlr_settings* settings, int64_t capacity,
                                   xlr_stream** stream);

XLR_API void xlr_stream_close(xlr_stream* stream);

/* Take the next piece of the document, of any length, and return the new scores: of every token that is final now,
 * except the document's first token. A text may be cut anywhere, and has the tokens of the whole text: the stream holds
 * its end, such as an unfinished word, until more text shows its tokens. It holds nothing if tokens are bytes. Ids come
 * after the tokens of the held text, which ends there. After an error of the text or of a token the stream is unchanged.
 * `scores` may be NULL. */
XLR_API xlr_status xlr_stream_feed_text(xlr_stream* stream, const char* text, size_t size, const xlr_scores** scores);
XLR_API xlr_status xlr_stream_feed_ids(xlr_stream* stream, const int64_t* ids, size_t count, const xlr_scores** scores);

/* Take the tokens of the held text, as if the text ended here, and return their scores. */
XLR_API xlr_status xlr_stream_flush(xlr_stream* stream, const xlr_scores** scores);

/* Return the scores that flushing would return, without changing the stream. */
XLR_API xlr_status xlr_stream_preview(xlr_stream* stream, const xlr_scores** scores);

/* Return the scores of a continuation, as if the text ended after it, without changing the stream: to compare
 * continuations. A token that begins in the held text and ends in the continuation counts; others of the held text are
 * only read. */
XLR_API xlr_status xlr_stream_score_text(xlr_stream* stream, const char* text, size_t size, const xlr_scores** scores);
XLR_API xlr_status xlr_stream_score_ids(xlr_stream* stream, const int64_t* ids, size_t count,
                                        const xlr_scores** scores);

/* Continue the document, after the tokens of the held text, and after a prompt if `count` is not 0. Drawn tokens become
 * part of the document, also one that ends a text (see xlr_generate). `sampling` may be NULL for the defaults; `take`
 * must be given. */
XLR_API xlr_status xlr_stream_generate(xlr_stream* stream, const int64_t* prompt, size_t count, size_t max_tokens,
                                       const xlr_sampling* sampling, xlr_token_function take, void* user);

/* ---- streams of step models ---- */

/* A tensor of the caller: numbers (rows, steps, ...) one after the other, at any address. */
typedef struct xlr_tensor {
  const char* name;
  const char* dtype; /* as in xlr_tensor_info */
  void* data;        /* of an input: only read */
  size_t bytes;      /* rows x steps x `bytes` of xlr_tensor_info */
} xlr_tensor;

/* Open a stream of a step model. Each of the `rows` has its own state and position; 0 is one, or the number that graphs
 * of fixed shapes take, which take no other. Functions for tokens fail with XLR_ERROR_OPTION on such a model and its
 * streams, and these functions on others. Those of all streams take both. */
XLR_API xlr_status xlr_stream_open_rows(xlr_model* model, size_t rows, xlr_stream** stream);

/* Take `steps` steps of all rows, and write the outputs that are named. Every input must be named once, floats finite
 * and bools 0 or 1. Results do not depend on how steps are cut into calls. Tensors must not overlap. After an error the
 * stream is unchanged, and outputs may have been written. Only the first call with a number of steps allocates memory
 * in this library, which keeps buffers for the last 8 numbers; ONNX Runtime may allocate in each. */
XLR_API xlr_status xlr_stream_run(xlr_stream* stream, const xlr_tensor* inputs, size_t input_count,
                                  const xlr_tensor* outputs, size_t output_count, size_t steps);

/* Begin anew on one row, from 0; xlr_stream_reset does on all. */
XLR_API xlr_status xlr_stream_reset_row(xlr_stream* stream, size_t row);

/* Return the number of rows; 1 of a language model, 0 for NULL. */
XLR_API size_t xlr_stream_rows(const xlr_stream* stream);

/* Return the steps that a row has taken since it began; 0 for NULL, or if there is no such row. */
XLR_API int64_t xlr_stream_row_position(const xlr_stream* stream, size_t row);

/* ---- all streams ---- */

/* Open an independent stream at the same place of the same document. This copies the memory and the held text. */
XLR_API xlr_status xlr_stream_fork(const xlr_stream* stream, xlr_stream** twin);

/* Forget the document; the next feed begins another. */
XLR_API xlr_status xlr_stream_reset(xlr_stream* stream);

/* Write the state to a file, which appears whole or not at all. Python and JavaScript read it, too. A link is
 * replaced, not its target; what is neither a file nor a link is refused. */
XLR_API xlr_status xlr_stream_save(const xlr_stream* stream, const char* file);

/* Go on with a stream that was saved here, in Python or in JavaScript. `capacity` 0 keeps the saved slots, and is
 * bit-equal to not having stopped. */
XLR_API xlr_status xlr_stream_restore(xlr_model* model, const char* file, int64_t capacity, xlr_stream** stream);

/* Return the number of tokens taken of the document, the held one included, or the steps of row 0; 0 for NULL. */
XLR_API int64_t xlr_stream_position(const xlr_stream* stream);

/* Return the id of the token that waits for its successor; -1 before the first token, and for NULL. */
XLR_API int64_t xlr_stream_pending(const xlr_stream* stream);

/* Return how often a text showed no certain end of a token for 4,096 bytes, so that the stream cut it, and tokens may
 * differ from those of the whole text; 0 for NULL. */
XLR_API int64_t xlr_stream_unsettled_cuts(const xlr_stream* stream);

/* Return the bytes of the carried memory; 0 for NULL. */
XLR_API size_t xlr_stream_memory_bytes(const xlr_stream* stream);

/* Return how often scores were not finite, so that the memory was filled with its first values; 0 for NULL. */
XLR_API int64_t xlr_stream_resets(const xlr_stream* stream);

#ifdef __cplusplus
}
#endif
#endif
