/* The cores that a program may use: their kind and their clock rates in kHz. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum { MOST_CORES = CPU_SETSIZE };

static char processors[1 << 20];

/* The value of a field of /proc/cpuinfo in the part of one core, or the first of all where the part has none. */
static const char *field(const char *part, const char *title, char *into, size_t size) {
    into[0] = '\0';
    const char *end = strstr(part, "\n\n");
    for (const char *line = part; line && (!end || line < end); line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, title, strlen(title))) continue;
        const char *value = strchr(line, ':');
        if (!value) break;
        while (*++value == ' ') {}
        size_t length = strcspn(value, "\n");
        if (length >= size) length = size - 1;
        memcpy(into, value, length);
        into[length] = '\0';
        break;
    }
    return into;
}

static const char *part_of(int core) {
    char title[32], value[32];
    for (const char *at = processors; at; at = strstr(at, "\n\n"), at = at ? at + 2 : NULL) {
        snprintf(title, sizeof title, "%d", core);
        if (!strcmp(field(at, "processor", value, sizeof value), title)) return at;
    }
    return "";
}

static void clock_of(int core, const char *file, const char *title) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/%s", core, file);
    printf(", \"%s\": ", title);
    print_number_or_null(read_number(path));
}

void print_cores(int with_clocks) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    int known = sched_getaffinity(0, sizeof allowed, &allowed) == 0, count = 0;
    if (read_text("/proc/cpuinfo", processors, sizeof processors) < 0) processors[0] = '\0';
    printf("\"cores\": [");
    for (int core = 0; known && core < MOST_CORES; core++) {
        if (!CPU_ISSET(core, &allowed)) continue;
        char value[128], path[128];
        const char *part = part_of(core);
        printf("%s{\"number\": %d, \"part\": ", count++ ? ", " : "", core);
        char text[300];
        const char *maker = field(part, "CPU implementer", value, sizeof value);
        snprintf(text, sizeof text, "%s", maker);
        if (*text) snprintf(text + strlen(text), sizeof text - strlen(text), ":%s", field(part, "CPU part", value, sizeof value));
        print_text(text);
        printf(", \"model\": ");
        print_text(field(part, "model name", value, sizeof value));
        if (with_clocks) {
            clock_of(core, "cpuinfo_min_freq", "least_khz");
            clock_of(core, "cpuinfo_max_freq", "most_khz");
            clock_of(core, "scaling_cur_freq", "now_khz");
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", core);
            printf(", \"governor\": ");
            print_text(read_text(path, value, sizeof value) < 0 ? "" : value);
        }
        printf("}");
    }
    printf("]");
}
