/* Extensions of the instruction set, by the names of the Linux kernel: what the processor offers to programs. */
#include <stdio.h>
#include <string.h>

#include "probe.h"

static int printed;

static void name(const char *text) {
    printf(printed++ ? ", " : "");
    print_text(text);
}

#if defined(__aarch64__)
#include <sys/auxv.h>

/* Bits of AT_HWCAP and AT_HWCAP2: Documentation/arch/arm64/elf_hwcaps.rst of the kernel. */
static const char *const FIRST[] = {
    "fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp",
    "cpuid", "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp", "sha512",
    "sve", "asimdfhm", "dit", "uscat", "ilrcpc", "flagm", "ssbs", "sb", "paca", "pacg"};
static const char *const SECOND[] = {
    "dcpodp", "sve2", "sveaes", "svepmull", "svebitperm", "svesha3", "svesm4", "flagm2", "frint", "svei8mm",
    "svef32mm", "svef64mm", "svebf16", "i8mm", "bf16", "dgh", "rng", "bti", "mte", "ecv", "afp", "rpres",
    "mte3", "sme"};

static void names(unsigned long bits, const char *const *table, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bits >> i & 1) name(table[i]);
}

void print_features(void) {
    unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    printf("\"features\": [");
    names(first, FIRST, sizeof FIRST / sizeof *FIRST);
    names(second, SECOND, sizeof SECOND / sizeof *SECOND);
    printf("], \"hwcap\": [%lu, %lu]", first, second);
}

#elif defined(__x86_64__)
#include <cpuid.h>

static unsigned long long enabled(void) { /* registers that the system saves: without them an extension is of no use */
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (unsigned long long)high << 32 | low;
}

enum { MOST = 18 };

/* The known extensions that are there: __builtin_cpu_supports knows them too, but Zig's library does not have what it needs. */
static size_t offered(const char *titles[MOST]) {
    unsigned a = 0, b = 0, c = 0, d = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0, most = 0;
    unsigned long long state = 0;
    __get_cpuid(1, &a, &b, &c, &d);
    if (c >> 27 & 1) state = enabled();
    int wide = (state & 6) == 6, widest = wide && (state & 0xe0) == 0xe0, tiles = (state & 0x60000) == 0x60000;
    if (__get_cpuid_count(7, 0, &most, &b7, &c7, &d7) && most >= 1) {
        unsigned x = 0, y = 0, z = 0;
        __get_cpuid_count(7, 1, &a71, &x, &y, &z);
    }
    const struct {
        const char *title;
        int there;
    } known[] = {
        {"ssse3", c >> 9 & 1},
        {"sse4_1", c >> 19 & 1},
        {"sse4_2", c >> 20 & 1},
        {"avx", wide && c >> 28 & 1},
        {"fma", wide && c >> 12 & 1},
        {"f16c", wide && c >> 29 & 1},
        {"avx2", wide && b7 >> 5 & 1},
        {"avx_vnni", wide && a71 >> 4 & 1},
        {"avx512f", widest && b7 >> 16 & 1},
        {"avx512dq", widest && b7 >> 17 & 1},
        {"avx512bw", widest && b7 >> 30 & 1},
        {"avx512vl", widest && b7 >> 31 & 1},
        {"avx512_vnni", widest && c7 >> 11 & 1},
        {"avx512_bf16", widest && a71 >> 5 & 1},
        {"avx512_fp16", widest && d7 >> 23 & 1},
        {"amx_bf16", tiles && d7 >> 22 & 1},
        {"amx_tile", tiles && d7 >> 24 & 1},
        {"amx_int8", tiles && d7 >> 25 & 1},
    };
    _Static_assert(sizeof known / sizeof *known == MOST, "one place for each");
    size_t count = 0;
    for (size_t i = 0; i < MOST; i++)
        if (known[i].there) titles[count++] = known[i].title;
    return count;
}

int has_feature(const char *title) {
    const char *titles[MOST];
    size_t count = offered(titles);
    for (size_t i = 0; i < count; i++)
        if (strcmp(titles[i], title) == 0) return 1;
    return 0;
}

void print_features(void) {
    const char *titles[MOST];
    size_t count = offered(titles);
    printf("\"features\": [");
    for (size_t i = 0; i < count; i++) name(titles[i]);
    printf("], \"hwcap\": []");
}

#else
#error "the probe is written for aarch64 and x86_64"
#endif
