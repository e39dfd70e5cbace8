/* Run a policy on numbers from stdin, a line for each step, at a fixed rate.
 *
 *     policy BUNDLE [RATE]
 *
 * RATE is in steps a second: 1000 by default, 0 for as many as possible. A line has the numbers of all inputs in the
 * order in which the bundle lists them; the program prints those of all outputs in the same way. At the end it writes
 * to stderr how long steps took, from the numbers to the actions, and how much memory the process had.
 */
#define _POSIX_C_SOURCE 200112L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "xlruntime.h"

enum { BUCKETS = 4000, WARM_UP = 1000 }; /* buckets of 1 %, from 1 ns on; steps after which memory must not grow */

static double now(void) { /* seconds */
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void wait_until(double when) {
  const double rest = when - now();
  struct timespec time;
  if (rest <= 0) return;
  time.tv_sec = (time_t)rest;
  time.tv_nsec = (long)((rest - (double)time.tv_sec) * 1e9);
  nanosleep(&time, NULL);
}

static long most_memory(void) { /* of the process so far: kB on Linux, bytes on macOS */
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/* Buffers for one step of one row. */
static xlr_tensor* tensors_of(const xlr_tensor_info* infos, size_t count) {
  xlr_tensor* tensors = calloc(count + 1, sizeof *tensors);
  for (size_t i = 0; tensors != NULL && i < count; ++i) {
    tensors[i].name = infos[i].name;
    tensors[i].dtype = infos[i].dtype;
    tensors[i].data = calloc(1, infos[i].bytes);
    tensors[i].bytes = infos[i].bytes;
  }
  return tensors;
}

static void free_tensors(xlr_tensor* tensors, size_t count) {
  for (size_t i = 0; tensors != NULL && i < count; ++i) free(tensors[i].data);
  free(tensors);
}

static size_t numbers_of(const xlr_tensor_info* info) {
  size_t count = 1;
  for (size_t i = 0; i < info->axes; ++i) count *= (size_t)info->shape[i];
  return count;
}

/* Read or print one number of a tensor. Other types than these are left out here. */
#define ACCESS(text, type)                       \
  if (strcmp(tensor->dtype, text) == 0) {        \
    type* const place = (type*)tensor->data + i; \
    if (given != NULL) *place = (type)*given;    \
    return (double)*place;                       \
  }
static double access_number(const xlr_tensor* tensor, size_t i, const double* given) {
  ACCESS("float32", float)
  ACCESS("bool", unsigned char)
  ACCESS("int64", int64_t)
  ACCESS("int32", int32_t)
  ACCESS("int8", int8_t)
  ACCESS("uint8", uint8_t)
  fprintf(stderr, "policy: %s is of %s, which this example does not read\n", tensor->name, tensor->dtype);
  exit(1);
}

/* Read the line of a step: 1, or 0 at the end of stdin, or -1 if the line has other things or another count. */
static int read_step(const xlr_model_info* info, xlr_tensor* inputs) {
  double number;
  int end;
  for (size_t i = 0; i < info->input_count; ++i) {
    for (size_t j = 0; j < numbers_of(&info->inputs[i]); ++j) {
      if (scanf("%lf", &number) != 1) return i + j == 0 && feof(stdin) ? 0 : -1;
      access_number(&inputs[i], j, &number);
    }
  }
  do end = getchar();
  while (end == ' ' || end == '\t' || end == '\r');
  return end == '\n' || end == EOF ? 1 : -1;
}

static void print_step(const xlr_model_info* info, const xlr_tensor* outputs) {
  for (size_t i = 0; i < info->output_count; ++i) {
    for (size_t j = 0; j < numbers_of(&info->outputs[i]); ++j) {
      printf("%s%.*g", i + j > 0 ? " " : "", strcmp(outputs[i].dtype, "float32") == 0 ? 9 : 17,
             access_number(&outputs[i], j, NULL));
    }
  }
  putchar('\n');
}

/* How long steps took: a table of counts, so that memory does not grow with the steps. */
static unsigned long counts[BUCKETS];
static double largest;
static unsigned long steps;

static void count(double seconds) {
  const int bucket = (int)(100 * log(seconds * 1e9 + 1));
  ++counts[bucket < BUCKETS ? bucket : BUCKETS - 1];
  if (seconds > largest) largest = seconds;
  ++steps;
}

static double quantile(double part) { /* in microseconds, up to 1 % */
  unsigned long sum = 0;
  int bucket = 0;
  while (bucket < BUCKETS - 1 && (double)(sum += counts[bucket]) < part * (double)steps) ++bucket;
  return exp((bucket + 1) / 100.0) * 1e-3;
}

static xlr_status run(const xlr_model_info* info, xlr_stream* stream, xlr_tensor* inputs, xlr_tensor* outputs,
                      double rate) {
  double next = now();
  long memory = 0;
  int line = 1;
  xlr_status status = XLR_OK;
  while (status == XLR_OK && (line = read_step(info, inputs)) > 0) {
    double begin;
    if (rate > 0) {
      wait_until(next);
      next += 1 / rate;
    }
    begin = now();
    status = xlr_stream_run(stream, inputs, info->input_count, outputs, info->output_count, 1);
    count(now() - begin);
    print_step(info, outputs);
    if (rate > 0) fflush(stdout); /* an actuator waits */
    if (steps == WARM_UP) memory = most_memory();
  }
  fprintf(stderr, "%lu steps\nmedian %9.1f us\n99.9 %% %9.1f us\nlargest %8.1f us\n", steps, quantile(0.5),
          quantile(0.999), largest * 1e6);
  fprintf(stderr, "memory %ld after %d steps, %ld at the end; %zu bytes of state\n", memory, WARM_UP, most_memory(),
          xlr_stream_memory_bytes(stream));
  if (line < 0) {
    fprintf(stderr, "policy: line %lu does not hold the numbers of one step\n", steps + 1);
    exit(1);
  }
  return status;
}

int main(int argc, char** argv) {
  xlr_load_options options = XLR_LOAD_OPTIONS_INIT;
  xlr_model* model = NULL;
  xlr_stream* stream = NULL;
  xlr_status status;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: policy BUNDLE [RATE]\n");
    return 1;
  }
  options.threads = 1; /* small graphs are done before a second thread begins */
  status = xlr_load(argv[1], &options, &model);
  if (status == XLR_OK) status = xlr_stream_open_rows(model, 1, &stream);
  if (status == XLR_OK) {
    const xlr_model_info* info = xlr_model_get_info(model);
    xlr_tensor* inputs = tensors_of(info->inputs, info->input_count);
    xlr_tensor* outputs = tensors_of(info->outputs, info->output_count);
    status = run(info, stream, inputs, outputs, argc == 3 ? atof(argv[2]) : 1000);
    free_tensors(inputs, info->input_count);
    free_tensors(outputs, info->output_count);
  }
  if (status != XLR_OK) fprintf(stderr, "policy: %s\n", xlr_error_text());
  xlr_stream_close(stream);
  xlr_model_close(model);
  return status != XLR_OK;
}
