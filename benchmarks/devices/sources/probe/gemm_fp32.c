/* Multiply-adds per second of one thread in fp32: packed matrices in the cache, a tile of the result in registers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

typedef void kernel(const float *a, const float *b, float *c); /* one tile over DEPTH */
typedef struct {
    const char *name;
    kernel *run;
    int rows, columns;
    float *a, *b, *c;
} product;

/* A tile of ROWS x (2 * LANES): rows of `a` are packed by column, columns of `b` by row. */
#define KERNEL(NAME, TARGET, LANES, ROWS)                                                             \
    TARGET static void NAME(const float *a, const float *b, float *c) {                               \
        typedef float vector __attribute__((vector_size(LANES * 4)));                                 \
        vector sum[ROWS][2], left, right;                                                             \
        memset(sum, 0, sizeof sum);                                                                   \
        for (int p = 0; p < DEPTH; p++, a += ROWS, b += 2 * LANES) {                                  \
            memcpy(&left, b, sizeof left);                                                            \
            memcpy(&right, b + LANES, sizeof right);                                                  \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                 \
                sum[i][0] += left * a[i];                                                             \
                sum[i][1] += right * a[i];                                                            \
            }                                                                                         \
        }                                                                                             \
        memcpy(c, sum, sizeof sum);                                                                   \
    }

#if defined(__x86_64__)
KERNEL(sse2, , 4, 4)
KERNEL(avx2, __attribute__((target("avx2,fma"))), 8, 6)
KERNEL(avx512, __attribute__((target("avx512f"))), 16, 12)

static product choose(void) {
    if (has_feature("avx512f")) return (product){"avx512f", avx512, 12, 32, NULL, NULL, NULL};
    if (has_feature("avx2") && has_feature("fma")) return (product){"avx2", avx2, 6, 16, NULL, NULL, NULL};
    return (product){"sse2", sse2, 4, 8, NULL, NULL, NULL};
}
#else
KERNEL(neon, , 4, 8)

static product choose(void) { return (product){"asimd", neon, 8, 8, NULL, NULL, NULL}; }
#endif

static double multiply(void *given) {
    product *p = given;
    double begin = seconds();
    int tall = SIDE / p->rows, wide = SIDE / p->columns, tile = p->rows * p->columns;
    for (int j = 0; j < wide; j++)
        for (int i = 0; i < tall; i++)
            p->run(p->a + i * p->rows * DEPTH, p->b + j * p->columns * DEPTH, p->c + (j * tall + i) * tile);
    return seconds() - begin;
}

static void check(const product *p) { /* whole numbers: exact in fp32 whatever the order */
    int tall = SIDE / p->rows, wide = SIDE / p->columns, tile = p->rows * p->columns;
    for (int j = 0; j < wide; j++)
        for (int i = 0; i < tall; i++)
            for (int r = 0; r < p->rows; r++)
                for (int s = 0; s < p->columns; s++) {
                    double right = 0;
                    for (int d = 0; d < DEPTH; d++)
                        right += (double)p->a[(i * DEPTH + d) * p->rows + r] * p->b[(j * DEPTH + d) * p->columns + s];
                    if ((double)p->c[(j * tall + i) * tile + r * p->columns + s] == right) continue;
                    fprintf(stderr, "the fp32 product of the kernel %s is wrong\n", p->name);
                    exit(WRONG_RESULT);
                }
}

void print_gemm_fp32(double slice_s) {
    product p = choose();
    size_t size = SIDE * DEPTH * sizeof(float);
    if (posix_memalign((void **)&p.a, 64, size) || posix_memalign((void **)&p.b, 64, size) ||
        posix_memalign((void **)&p.c, 64, SIDE * SIDE * sizeof(float)))
        exit(1);
    for (int i = 0; i < SIDE * DEPTH; i++) p.a[i] = (float)(i * 7 % 17 - 8), p.b[i] = (float)(i * 5 % 13 - 6);
    multiply(&p);
    check(&p);
    double median, best = fastest(multiply, &p, slice_s, &median);
    double work = 2.0 * (SIDE / p.rows * p.rows) * (SIDE / p.columns * p.columns) * DEPTH / 1e9;
    printf("\"kernel\": \"%s\", \"rate\": {\"best\": %.4g, \"median\": %.4g}", p.name, work / best, work / median);
    free(p.a), free(p.b), free(p.c);
}
