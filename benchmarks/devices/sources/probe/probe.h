/* What the parts of the probe share: each part prints its members of the one JSON object. */
#ifndef POCKETBERT_PROBE_H
#define POCKETBERT_PROBE_H

#include <stddef.h>

/* text.c */
int read_text(const char *path, char *into, size_t size); /* length of what was read, line end removed; -1 if none */
long long read_number(const char *path);                  /* -1 if there is none */
void print_text(const char *text);                        /* as a JSON string */
void print_number_or_null(long long value);

/* clock.c */
double seconds(void);
double fastest(double (*once)(void *), void *work, double slice_s, double *median); /* seconds of one call */

/* features.c, cores.c, system.c: facts */
void print_features(void);
#if defined(__x86_64__)
int has_feature(const char *title); /* by the name that print_features gives */
#endif
void print_cores(int with_clocks);
void print_thermal(void);
void print_memory(void);
void print_load(void);
void print_board(void);

/* bandwidth.c, gemm_fp32.c, gemm_int8.c: rates of one thread. A wrong result ends the program with status 3. */
void print_bandwidth(double slice_s);
void print_gemm_fp32(double slice_s);
void print_gemm_int8(double slice_s);

enum { WRONG_RESULT = 3, DEPTH = 256, SIDE = 192 };
/* Products of two matrices of about SIDE x DEPTH and DEPTH x SIDE, packed: they stay in the second cache. */

#endif
