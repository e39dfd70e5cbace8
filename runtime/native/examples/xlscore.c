/* Score a text file with a bundle, as `xlexport score` does, and print a line of totals.
 *
 *     xlscore BUNDLE FILE [--setting NAME=VALUE] [--threads N] [--bodies] [--tokens]
 *
 * --setting may occur several times, such as --setting mem_len=256. --bodies runs the bodies of custom operators, not
 * this library's kernels. --tokens prints a line for each token: index, id, logarithm of the probability.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xlruntime.h"

enum { MOST_SETTINGS = 32 };

static int fail(const char* what) {
  fprintf(stderr, "xlscore: %s\n", what);
  return 1;
}

/* Read a whole number, and return whether the text is one. */
static int read_number(const char* text, long long* number) {
  char* end;
  errno = 0;
  *number = strtoll(text, &end, 10);
  return errno == 0 && end != text && *end == '\0';
}

static int print_tokens(void* user, const xlr_scores* scores) {
  (void)user;
  for (size_t i = 0; i < scores->count; ++i) {
    printf("%lld\t%lld\t%.9g\n", (long long)scores->index[i], (long long)scores->tokens[i], scores->log_probs[i]);
  }
  return ferror(stdout);
}

int main(int argc, char** argv) {
  xlr_load_options load = XLR_LOAD_OPTIONS_INIT;
  xlr_score_options options = XLR_SCORE_OPTIONS_INIT;
  xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
  xlr_setting settings[MOST_SETTINGS];
  xlr_scores_function take = NULL;
  const char *bundle = NULL, *file = NULL;
  long long number;

  options.settings = settings;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--bodies") == 0) {
      load.kernels = 0;
    } else if (strcmp(argv[i], "--tokens") == 0) {
      take = print_tokens;
    } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      if (!read_number(argv[++i], &number) || number < 0 || number > 4096) return fail("--threads needs a number.");
      load.threads = (int)number;
    } else if (strcmp(argv[i], "--setting") == 0 && i + 1 < argc && options.setting_count < MOST_SETTINGS) {
      char* equals = strchr(argv[++i], '=');
      if (equals == NULL || !read_number(equals + 1, &number)) return fail("--setting needs NAME=NUMBER.");
      *equals = '\0';
      settings[options.setting_count].name = argv[i];
      settings[options.setting_count++].value = number;
    } else if (bundle == NULL) {
      bundle = argv[i];
    } else if (file == NULL) {
      file = argv[i];
    } else {
      return fail("usage: xlscore BUNDLE FILE [--setting NAME=VALUE] [--threads N] [--bodies] [--tokens]");
    }
  }
  if (file == NULL)
    return fail("usage: xlscore BUNDLE FILE [--setting NAME=VALUE] [--threads N] [--bodies] [--tokens]");

  xlr_model* model;
  if (xlr_load(bundle, &load, &model) != XLR_OK) return fail(xlr_error_text());
  const xlr_status status = xlr_score_file(model, file, &options, take, NULL, &total);
  xlr_model_close(model);
  if (status != XLR_OK) return fail(xlr_error_text());
  printf("tokens %lld, bits %.17g, bits per token %.6f, bits per byte %.6f, perplexity %.6f\n", (long long)total.tokens,
         total.bits, total.bits_per_token, total.bits_per_byte, total.perplexity);
  return 0;
}
