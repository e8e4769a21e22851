/* Bytes per second that one thread reads from main memory, and that it copies (each byte counts once read, once written). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

typedef uint64_t lanes __attribute__((vector_size(32)));
typedef struct {
    lanes *from, *to;
    size_t bytes;
    uint64_t sum, calls;
} buffers;

static double read_all(void *given) {
    buffers *work = given;
    double begin = seconds();
    lanes sum[4] = {{0}};
    size_t count = work->bytes / sizeof(lanes);
    for (size_t i = 0; i < count; i += 4)
        for (size_t j = 0; j < 4; j++) sum[j] += work->from[i + j];
    sum[0] += sum[1] + sum[2] + sum[3];
    work->sum += sum[0][0] + sum[0][1] + sum[0][2] + sum[0][3];
    work->calls++;
    return seconds() - begin;
}

static double copy_all(void *given) {
    buffers *work = given;
    double begin = seconds();
    memcpy(work->to, work->from, work->bytes);
    __asm__ volatile("" ::"r"(work->to) : "memory"); /* the copy is used */
    return seconds() - begin;
}

void print_bandwidth(double slice_s) {
    size_t most = (size_t)128 << 20, pages = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    buffers work = {NULL, NULL, pages / 8 < most ? (pages / 8) & ~(size_t)0xffff : most, 0, 0};
    if (work.bytes < (size_t)1 << 22) work.bytes = (size_t)1 << 22;
    if (posix_memalign((void **)&work.from, 4096, work.bytes) || posix_memalign((void **)&work.to, 4096, work.bytes)) {
        fprintf(stderr, "there are no %zu bytes for the measurement of the memory\n", 2 * work.bytes);
        exit(1);
    }
    memset(work.from, 1, work.bytes); /* pages that were never written all lie in one */
    memset(work.to, 2, work.bytes);
    double median, best = fastest(read_all, &work, slice_s, &median), size = (double)work.bytes / 1e9;
    if (work.sum != work.calls * (work.bytes / 8) * 0x0101010101010101ULL) { /* all of it was read */
        fprintf(stderr, "the sum of the memory is wrong\n");
        exit(WRONG_RESULT);
    }
    printf("\"buffer_bytes\": %zu, \"read\": {\"best\": %.4g, \"median\": %.4g}", work.bytes, size / best, size / median);
    best = fastest(copy_all, &work, slice_s, &median);
    printf(", \"copy\": {\"best\": %.4g, \"median\": %.4g}", 2 * size / best, 2 * size / median);
    free(work.from);
    free(work.to);
}
