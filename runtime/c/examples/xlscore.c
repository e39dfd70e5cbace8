/* Score a text file with a bundle, as `xlexport score` does, and print a line of totals.
 *
 *     xlscore BUNDLE FILE [--segment-len N] [--mem-len N] [--threads N] [--digest SHA256] [--no-kernels] [--tokens]
 *
 * --digest is the SHA-256 that bundle.json must have. --no-kernels runs standard operators, not this library's kernels.
 * --tokens prints a line for each token: index, id, logarithm of the probability.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xlruntime.h"

static int fail(const char* what) {
  fprintf(stderr, "xlscore: %s\n", what);
  return 1;
}

/* Read a whole number of at least 0, and return whether the text is one. */
static int read_number(const char* text, long long* number) {
  char* end;
  errno = 0;
  *number = strtoll(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && *number >= 0 && *number <= INT32_MAX;
}

static int print_tokens(void* user, const xlr_scores* scores) {
  (void)user;
  for (size_t i = 0; i < scores->count; ++i) {
    printf("%lld\t%lld\t%.9g\n", (long long)scores->index[i], (long long)scores->tokens[i], scores->log_probs[i]);
  }
  return ferror(stdout);
}

int main(int argc, char** argv) {
  static const char* const usage =
      "usage: xlscore BUNDLE FILE [--segment-len N] [--mem-len N] [--threads N] [--digest SHA256] [--no-kernels] "
      "[--tokens]";
  xlr_load_options load = XLR_LOAD_OPTIONS_INIT;
  xlr_settings settings = XLR_SETTINGS_INIT;
  xlr_score_options options = XLR_SCORE_OPTIONS_INIT;
  xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
  xlr_scores_function take = NULL;
  const char *paths[2] = {NULL, NULL}, *value;
  int count = 0;
  long long number;
  xlr_model* model;
  xlr_status status;

  options.settings = &settings;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--no-kernels") == 0) {
      load.kernels = 0;
    } else if (strcmp(argv[i], "--tokens") == 0) {
      take = print_tokens;
    } else if (strncmp(argv[i], "--", 2) != 0 && count < 2) {
      paths[count++] = argv[i];
    } else if (i + 1 == argc) {
      return fail(usage);
    } else {
      value = argv[++i];
      if (strcmp(argv[i - 1], "--digest") == 0) {
        load.digest = value;
      } else if (!read_number(value, &number)) {
        return fail(usage);
      } else if (strcmp(argv[i - 1], "--segment-len") == 0) {
        settings.segment_len = number;
      } else if (strcmp(argv[i - 1], "--mem-len") == 0) {
        settings.mem_len = number;
      } else if (strcmp(argv[i - 1], "--threads") == 0) {
        load.threads = (int)number;
      } else {
        return fail(usage);
      }
    }
  }
  if (count < 2) return fail(usage);

  if (xlr_load(paths[0], &load, &model) != XLR_OK) return fail(xlr_error_text());
  status = xlr_score_file(model, paths[1], &options, take, NULL, &total);
  xlr_model_close(model);
  if (status != XLR_OK) return fail(xlr_error_text());
  printf("tokens %lld, bits %.17g, bits per token %.6f, bits per byte %.6f, perplexity %.6f\n", (long long)total.tokens,
         total.bits, total.bits_per_token, total.bits_per_byte, total.perplexity);
  return 0;
}
