/*
 * Stands in for the parts of Android's C library (bionic) that differ from glibc, so that a test on a desktop can run the native
 * library of the TFLite AAR unchanged. Test-only; never shipped. x86-64 Linux only: there, structures such as pthread_mutex_t
 * and struct stat have the same sizes and zero initialisers in both libraries.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* bionic's stdin, stdout and stderr are places in an array of three structures of 152 bytes */
enum { FILE_BYTES = 152 };
static char *standard_files; /* __sF of libc.so */

static FILE *file_of(void *file) {
    char *place = file, *first = standard_files;
    if (place < first || place >= first + 3 * FILE_BYTES) {
        return file; /* from fopen, which is glibc's */
    }
    FILE *standard[] = {stdin, stdout, stderr};
    return standard[(place - first) / FILE_BYTES];
}

int shim_vfprintf(void *file, const char *format, va_list arguments) { return vfprintf(file_of(file), format, arguments); }

int shim_fprintf(void *file, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int written = vfprintf(file_of(file), format, arguments);
    va_end(arguments);
    return written;
}

size_t shim_fwrite(const void *from, size_t size, size_t count, void *file) { return fwrite(from, size, count, file_of(file)); }
int shim_fputc(int character, void *file) { return fputc(character, file_of(file)); }
int shim_fflush(void *file) { return fflush(file ? file_of(file) : NULL); }
int shim_fileno(void *file) { return fileno(file_of(file)); }
int *shim___errno(void) { return &errno; }
size_t shim___strlen_chk(const char *text, size_t room) { (void)room; return strlen(text); }
extern int __xpg_strerror_r(int, char *, size_t);
int shim_strerror_r(int number, char *into, size_t room) { return __xpg_strerror_r(number, into, room); }
void shim_android_set_abort_message(const char *message) { fprintf(stderr, "abort: %s\n", message); }

int shim___system_property_get(const char *name, char *value) {
    (void)name;
    value[0] = 0; /* no system property is set */
    return 0;
}

int shim___android_log_vprint(int priority, const char *tag, const char *format, va_list arguments) {
    (void)priority;
    fprintf(stderr, "%s: ", tag);
    int written = vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    return written;
}

/* bionic numbers the questions differently */
long shim_sysconf(int name) {
    switch (name) {
        case 0x27: case 0x28: return sysconf(_SC_PAGESIZE);
        case 0x60: return sysconf(_SC_NPROCESSORS_CONF);
        case 0x61: return sysconf(_SC_NPROCESSORS_ONLN);
        default: errno = EINVAL; return -1;
    }
}

/* Fills the table of libc.so's stubs: for each name the function above, else glibc's; names that nothing has stay null. */
void shim_fill(const char *const *names, void **table, char *files) {
    standard_files = files;
    void *self = dlopen("libshim.so", RTLD_NOW | RTLD_NOLOAD);
    void *libraries[] = {dlopen("libc.so.6", RTLD_NOW), dlopen("libm.so.6", RTLD_NOW)};
    for (size_t i = 0; names[i]; i++) {
        char own[256];
        snprintf(own, sizeof own, "shim_%s", names[i]);
        table[i] = self ? dlsym(self, own) : NULL;
        for (int j = 0; j < 2 && !table[i]; j++) {
            table[i] = dlsym(libraries[j], names[i]);
        }
        if (!table[i]) {
            fprintf(stderr, "shim: neither glibc nor shim/bionic.c has %s\n", names[i]);
        }
    }
}
