/* Multiply-adds per second of one thread in int8 with sums in int32: packed as the dot-product instructions want it.
 *
 * Four (asimd and i8mm: eight) neighbours of a row lie together. `a` is 0 to 127, so that it is the same number with and
 * without a sign, and that sums of two products do not overflow 16 bits (AVX2).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

typedef void kernel(const int8_t *a, const int8_t *b, int32_t *c); /* one tile over DEPTH */
typedef struct {
    const char *name;
    kernel *run;
    int rows, columns, group; /* group: neighbours that lie together */
    int8_t *a, *b;
    int32_t *c;
} product;

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void avx2(const int8_t *a, const int8_t *b, int32_t *c) {
    __m256i sum[4][2], ones = _mm256_set1_epi16(1);
    memset(sum, 0, sizeof sum);
    for (int p = 0; p < DEPTH; p += 4, a += 16, b += 64) {
        __m256i left = _mm256_loadu_si256((const void *)b), right = _mm256_loadu_si256((const void *)(b + 32));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            int four;
            memcpy(&four, a + 4 * i, 4);
            __m256i row = _mm256_set1_epi32(four);
            sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(_mm256_maddubs_epi16(row, left), ones));
            sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(_mm256_maddubs_epi16(row, right), ones));
        }
    }
    memcpy(c, sum, sizeof sum);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void avx512(const int8_t *a, const int8_t *b, int32_t *c) {
    __m512i sum[12][2];
    memset(sum, 0, sizeof sum);
    for (int p = 0; p < DEPTH; p += 4, a += 48, b += 128) {
        __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + 64);
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            int four;
            memcpy(&four, a + 4 * i, 4);
            __m512i row = _mm512_set1_epi32(four);
            sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], row, left);
            sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], row, right);
        }
    }
    memcpy(c, sum, sizeof sum);
}

static void plain(const int8_t *a, const int8_t *b, int32_t *c) {
    memset(c, 0, 16 * sizeof *c);
    for (int p = 0; p < DEPTH; p += 4, a += 16, b += 16)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                for (int d = 0; d < 4; d++) c[4 * i + j] += a[4 * i + d] * b[4 * j + d];
}

static product choose(void) {
    if (has_feature("avx512_vnni") && has_feature("avx512bw"))
        return (product){"avx512_vnni", avx512, 12, 32, 4, NULL, NULL, NULL};
    if (has_feature("avx2")) return (product){"avx2", avx2, 4, 16, 4, NULL, NULL, NULL};
    return (product){"x86-64", plain, 4, 4, 4, NULL, NULL, NULL};
}

#else
#include <arm_neon.h>
#include <sys/auxv.h>

static void asimd(const int8_t *a, const int8_t *b, int32_t *c) {
    int32x4_t sum[4][4];
    memset(sum, 0, sizeof sum);
    for (int p = 0; p < DEPTH; p += 8, a += 32, b += 32)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                sum[i][j] = vpadalq_s16(sum[i][j], vmull_s8(vld1_s8(a + 8 * i), vld1_s8(b + 8 * j)));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) c[4 * i + j] = vaddvq_s32(sum[i][j]);
}

#define ROW(I, A, LANE)                                         \
    sum[I][0] = vdotq_laneq_s32(sum[I][0], left, A, LANE);      \
    sum[I][1] = vdotq_laneq_s32(sum[I][1], right, A, LANE);

__attribute__((target("arch=armv8.2-a+dotprod"))) static void dotprod(const int8_t *a, const int8_t *b, int32_t *c) {
    int32x4_t sum[8][2];
    memset(sum, 0, sizeof sum);
    for (int p = 0; p < DEPTH; p += 4, a += 32, b += 32) {
        int8x16_t left = vld1q_s8(b), right = vld1q_s8(b + 16), upper = vld1q_s8(a), lower = vld1q_s8(a + 16);
        ROW(0, upper, 0) ROW(1, upper, 1) ROW(2, upper, 2) ROW(3, upper, 3)
        ROW(4, lower, 0) ROW(5, lower, 1) ROW(6, lower, 2) ROW(7, lower, 3)
    }
    memcpy(c, sum, sizeof sum);
}

__attribute__((target("arch=armv8.2-a+i8mm"))) static void i8mm(const int8_t *a, const int8_t *b, int32_t *c) {
    int32x4_t sum[4][4]; /* each holds two rows of two columns */
    memset(sum, 0, sizeof sum);
    for (int p = 0; p < DEPTH; p += 8, a += 64, b += 64)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sum[i][j] = vmmlaq_s32(sum[i][j], vld1q_s8(a + 16 * i), vld1q_s8(b + 16 * j));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            vst1_s32(c + 16 * i + 2 * j, vget_low_s32(sum[i][j]));
            vst1_s32(c + 16 * i + 8 + 2 * j, vget_high_s32(sum[i][j]));
        }
}

static product choose(void) {
    if (getauxval(AT_HWCAP2) >> 13 & 1) return (product){"i8mm", i8mm, 8, 8, 8, NULL, NULL, NULL};
    if (getauxval(AT_HWCAP) >> 20 & 1) return (product){"asimddp", dotprod, 8, 8, 4, NULL, NULL, NULL};
    return (product){"asimd", asimd, 4, 4, 8, NULL, NULL, NULL};
}
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

static int32_t exact(const product *p, const int8_t *a, const int8_t *b, int row, int column) {
    int32_t sum = 0;
    for (int d = 0; d < DEPTH; d++) {
        int block = d / p->group, inner = d % p->group;
        sum += a[(block * p->rows + row) * p->group + inner] * b[(block * p->columns + column) * p->group + inner];
    }
    return sum;
}

static void check(const product *p) {
    int tall = SIDE / p->rows, wide = SIDE / p->columns, tile = p->rows * p->columns;
    for (int j = 0; j < wide; j++)
        for (int i = 0; i < tall; i++)
            for (int place = 0; place < tile; place++) {
                const int8_t *a = p->a + i * p->rows * DEPTH, *b = p->b + j * p->columns * DEPTH;
                if (p->c[(j * tall + i) * tile + place] == exact(p, a, b, place / p->columns, place % p->columns)) continue;
                fprintf(stderr, "the int8 product of the kernel %s is wrong\n", p->name);
                exit(WRONG_RESULT);
            }
}

void print_gemm_int8(double slice_s) {
    product p = choose();
    if (posix_memalign((void **)&p.a, 64, SIDE * DEPTH) || posix_memalign((void **)&p.b, 64, SIDE * DEPTH) ||
        posix_memalign((void **)&p.c, 64, SIDE * SIDE * sizeof *p.c))
        exit(1);
    for (int i = 0; i < SIDE * DEPTH; i++) p.a[i] = (int8_t)(i * 31 % 128), p.b[i] = (int8_t)(i * 37 % 255 - 127);
    multiply(&p);
    check(&p);
    double median, best = fastest(multiply, &p, slice_s, &median);
    double work = 2.0 * (SIDE / p.rows * p.rows) * (SIDE / p.columns * p.columns) * DEPTH / 1e9;
    printf("\"kernel\": \"%s\", \"rate\": {\"best\": %.4g, \"median\": %.4g}", p.name, work / best, work / median);
    free(p.a), free(p.b), free(p.c);
}
