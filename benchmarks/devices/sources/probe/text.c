/* Small files of the system, and JSON. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "probe.h"

int read_text(const char *path, char *into, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    size_t length = 0;
    ssize_t got;
    while (length + 1 < size && (got = read(file, into + length, size - 1 - length)) > 0) length += (size_t)got;
    close(file);
    while (length > 0 && (into[length - 1] == '\n' || into[length - 1] == '\0')) length--;
    into[length] = '\0';
    return length ? (int)length : -1;
}

long long read_number(const char *path) {
    char text[64], *end;
    if (read_text(path, text, sizeof text) < 0) return -1;
    long long value = strtoll(text, &end, 10);
    return end == text ? -1 : value;
}

void print_text(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') printf("\\%c", *c);
        else if (*c < 0x20 || *c > 0x7e) printf("\\u%04x", *c);
        else putchar(*c);
    }
    putchar('"');
}

void print_number_or_null(long long value) {
    if (value < 0) printf("null");
    else printf("%lld", value);
}
