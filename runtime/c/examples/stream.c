/* Read a document as it arrives, compare continuations, save the stream and go on with it.
 *
 *     stream BUNDLE STATE
 *
 * STATE is the file for the saved stream.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "xlruntime.h"

enum { MOST_DRAWN = 60 };

/* Tokens of a continuation. One token of bytes may be a part of a character, so they are decoded together. */
typedef struct drawn {
  int64_t tokens[MOST_DRAWN];
  size_t count;
} drawn;

static int keep_token(void* user, int64_t token) {
  drawn* kept = user;
  kept->tokens[kept->count++] = token;
  return 0;
}

static xlr_status print_drawn(xlr_model* model, const drawn* kept) {
  char* text;
  size_t size;
  const xlr_status status = xlr_decode(model, kept->tokens, kept->count, &text, &size);
  if (status != XLR_OK) return status;
  fwrite(text, 1, size, stdout);
  putchar('\n');
  xlr_free(text);
  return XLR_OK;
}

/* Print the bits of the tokens that a call has just scored. */
static void print_bits(const char* what, const xlr_scores* scores) {
  double bits = 0;
  for (size_t i = 0; i < scores->count; ++i) bits -= scores->log_probs[i] / log(2);
  printf("%s: %zu tokens, %.2f bits\n", what, scores->count, bits);
}

static int run(xlr_model* model, const char* state) {
  static const char* const pieces[] = {"The stream remembers what it has read: ", "piece after piece, ",
                                       "at constant memory. "};
  static const char* const endings[] = {"The end.", "The xqz."};
  xlr_sampling sampling = XLR_SAMPLING_INIT;
  drawn kept = {{0}, 0};
  xlr_stream *stream = NULL, *restored = NULL;
  const xlr_scores* scores;
  xlr_status status = xlr_stream_open(model, NULL, 0, &stream);

  for (size_t i = 0; status == XLR_OK && i < sizeof pieces / sizeof *pieces; ++i) {
    status = xlr_stream_feed_text(stream, pieces[i], strlen(pieces[i]), &scores);
    if (status == XLR_OK) print_bits(pieces[i], scores);
  }
  for (size_t i = 0; status == XLR_OK && i < sizeof endings / sizeof *endings; ++i) { /* the stream stays as it was */
    status = xlr_stream_score_text(stream, endings[i], strlen(endings[i]), &scores);
    if (status == XLR_OK) print_bits(endings[i], scores);
  }
  if (status == XLR_OK) status = xlr_stream_save(stream, state);
  if (status == XLR_OK) status = xlr_stream_restore(model, state, 0, &restored);
  if (status == XLR_OK) {
    sampling.temperature = 0.8;
    sampling.seed = 1;
    sampling.has_seed = 1;
    status = xlr_stream_generate(restored, NULL, 0, MOST_DRAWN, &sampling, keep_token, &kept);
  }
  if (status == XLR_OK) status = print_drawn(model, &kept);
  xlr_stream_close(stream);
  xlr_stream_close(restored);
  return status != XLR_OK;
}

int main(int argc, char** argv) {
  xlr_model* model;
  int failed;
  if (argc != 3) {
    fprintf(stderr, "usage: stream BUNDLE STATE\n");
    return 1;
  }
  failed = xlr_load(argv[1], NULL, &model) != XLR_OK;
  if (!failed) {
    failed = run(model, argv[2]);
    xlr_model_close(model);
  }
  if (failed) fprintf(stderr, "stream: %s\n", xlr_error_text());
  return failed;
}
