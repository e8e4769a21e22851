/* Memory, temperatures, load and board, as the system's files tell them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum { MOST_ZONES = 256 };

void print_thermal(void) {
    printf("\"thermal\": [");
    for (int zone = 0, count = 0; zone < MOST_ZONES; zone++) {
        char path[96], name[128];
        snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/temp", zone);
        long long value = read_number(path);
        if (value <= 0) continue; /* a zone that is off, or one that this user may not read */
        snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/type", zone);
        printf("%s{\"name\": ", count++ ? ", " : "");
        print_text(read_text(path, name, sizeof name) < 0 ? "" : name);
        printf(", \"celsius\": %.1f}", (double)value / 1000);
    }
    printf("]");
}

static long long kilobytes(const char *text, const char *title) {
    const char *line = strstr(text, title);
    return line ? strtoll(line + strlen(title), NULL, 10) : -1;
}

void print_memory(void) {
    char text[8192];
    long long total = -1, available = -1;
    if (read_text("/proc/meminfo", text, sizeof text) > 0) {
        total = kilobytes(text, "MemTotal:");
        available = kilobytes(text, "MemAvailable:");
    }
    printf("\"memory_bytes\": ");
    print_number_or_null(total < 0 ? -1 : total * 1024);
    printf(", \"available_bytes\": ");
    print_number_or_null(available < 0 ? -1 : available * 1024);
}

void print_load(void) {
    char text[128], *end;
    double load = read_text("/proc/loadavg", text, sizeof text) < 0 ? -1 : strtod(text, &end);
    if (load < 0 || end == text) printf("\"load\": null");
    else printf("\"load\": %.2f", load);
}

void print_board(void) {
    char text[256];
    printf("\"board\": ");
    print_text(read_text("/proc/device-tree/model", text, sizeof text) < 0 ? "" : text);
}
