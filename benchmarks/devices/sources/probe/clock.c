/* How long work takes: the fastest and the middle one of some slices of time. */
#include <stdlib.h>
#include <time.h>

#include "probe.h"

enum { SLICES = 5, MOST_CALLS = 1 << 24 };

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double fastest(double (*once)(void *), void *work, double slice_s, double *median) {
    double times[SLICES];
    for (int i = 0; i < SLICES; i++) {
        double sum = 0.0;
        int calls = 0;
        do {
            sum += once(work);
            calls++;
        } while (sum < slice_s && calls < MOST_CALLS);
        times[i] = sum / calls;
    }
    qsort(times, SLICES, sizeof times[0], order);
    *median = times[SLICES / 2];
    return times[0];
}
