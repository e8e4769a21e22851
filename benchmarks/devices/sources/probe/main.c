/* Print what a processor is and what it can do, as one JSON object: `probe features` or `probe all MILLISECONDS`.
 *
 * `features` tells nothing that takes time: it suits an emulator. MILLISECONDS is the length of each of the five slices of a
 * measurement. The program is static and needs no Python, no library and no write access.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "probe.h"

int main(int count, char **given) {
    int all = count == 3 && !strcmp(given[1], "all");
    double slice_s = all ? atof(given[2]) / 1000 : 0;
    if (!(count == 2 && !strcmp(given[1], "features")) && !(all && slice_s > 0 && slice_s <= 10)) {
        fprintf(stderr, "probe features | probe all MILLISECONDS\n");
        return 2;
    }
    struct utsname name;
    if (uname(&name)) return 1;
    printf("{\"probe\": 1, \"arch\": ");
    print_text(name.machine);
    printf(", \"page_bytes\": %ld, ", sysconf(_SC_PAGESIZE));
    print_features();
    printf(", ");
    print_cores(all);
    if (all) {
        printf(", \"system\": ");
        print_text(name.sysname);
        printf(", \"release\": ");
        print_text(name.release);
        printf(", ");
        print_board();
        printf(", ");
        print_load();
        printf(", ");
        print_memory();
        printf(", ");
        print_thermal();
        printf(", \"rates\": {\"memory\": {");
        print_bandwidth(slice_s);
        printf("}, \"fp32\": {");
        print_gemm_fp32(slice_s);
        printf("}, \"int8\": {");
        print_gemm_int8(slice_s);
        printf("}}");
    }
    printf("}\n");
    return fflush(stdout) ? 1 : 0;
}
