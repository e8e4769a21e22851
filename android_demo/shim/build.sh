#!/usr/bin/env bash
# Build libraries that let a desktop JVM load the TFLite AAR's own library: shim/build.sh LIBRARY FOLDER
#
# Every undefined symbol of LIBRARY becomes a stub in FOLDER/libc.so that jumps to glibc, or to shim/bionic.c where they differ.
# Needs gcc and binutils on x86-64 Linux. Test-only; see android_demo/README.md.
set -euo pipefail
[ "$(uname -sm)" = "Linux x86_64" ] && command -v gcc nm > /dev/null || { echo "shim: not built: it needs x86-64 Linux, gcc and nm"; exit 1; }
library=$1 folder=$2 here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

names=$(nm -D --undefined-only "$library" | awk '{print $2}' | sed 's/@.*//' | grep -v '^_ZN' | grep -vx __sF | sort -u)
{
    echo "char __sF[3][152];"
    echo "extern void shim_fill(const char *const *, void **, char *);"
    echo "__attribute__((visibility(\"hidden\"))) void *shim_table[$(wc -w <<<"$names") + 1];"
    echo "static const char *const names[] = {"
    for name in $names; do echo "    \"$name\","; done
    echo "    0};"
    echo "__attribute__((constructor)) static void fill(void) { shim_fill(names, shim_table, __sF[0]); }"
    i=0
    for name in $names; do
        echo "__asm__(\".globl $name\\n.type $name,@function\\n$name: jmp *shim_table+$((8 * i))(%rip)\\n\");"
        i=$((i + 1))
    done
} > stubs.c
echo 'LIBC { global: *; };' > libc.map
echo 'int shim_unused;' > empty.c

gcc -O2 -shared -fPIC -Wl,-soname,libshim.so -o libshim.so "$here/bionic.c"
gcc -O2 -shared -fPIC -fno-builtin -fno-stack-protector -nostdlib -Wl,-soname,libc.so -Wl,--version-script=libc.map -o libc.so stubs.c \
    libshim.so
for name in m dl log; do
    gcc -shared -fPIC -nostdlib "-Wl,-soname,lib$name.so" -Wl,--version-script=libc.map -o "lib$name.so" empty.c ./libc.so
done
