/* Count the instructions that a guest of QEMU's user mode executes, in 8 bytes of a file that anybody may read meanwhile.

   gcc -shared -fPIC -O2 -o count.so count.c;  qemu-aarch64 -plugin count.so,counter=FILE PROGRAM

   A plugin of QEMU's TCG interface, version 1 (docs/devel/tcg-plugins.rst). The declarations below are the part of
   qemu-plugin.h that is used: Debian 12 does not ship it. The number is exact for a guest with one thread; threads that
   add at the same moment lose counts. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum qemu_plugin_op { ADD_U64 };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*made)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, enum qemu_plugin_op op, void *to, uint64_t number);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
static uint64_t *counter;

/* Every block of guest code that is translated adds its length whenever it is executed. */
static void made(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, counter, qemu_plugin_tb_n_insns(tb));
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
    static const char name[] = "counter=";
    (void)info;
    if (argc != 1 || strncmp(argv[0], name, sizeof name - 1) != 0) {
        fprintf(stderr, "count: give counter=FILE\n");
        return -1;
    }
    int file = open(argv[0] + sizeof name - 1, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof *counter) != 0) {
        perror("count");
        return -1;
    }
    counter = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (counter == MAP_FAILED) {
        perror("count");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, made);
    return 0;
}
