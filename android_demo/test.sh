#!/usr/bin/env bash
# Build and test the demo: android_demo/test.sh PYTHON [ARTEFACTS]
#
# PYTHON has PocketBERT installed and writes the fixtures. ARTEFACTS is an artefact folder that the app carries instead of a tiny
# model's. What cannot run here is skipped with a line that says so. MVN_FLAGS passes options, such as -o for no network.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
artefacts=${2:+$(realpath "$2")}
cd "$(dirname "$0")"

for tool in javac mvn; do
    command -v "$tool" > /dev/null || { echo "test-android: SKIPPED: $tool is not installed (apt-get install openjdk-17-jdk-headless maven)"; exit 0; }
done

# Debian's tools for the app: installed, or unpacked by `make tools`, whose libraries only these commands may load
unpacked=$(realpath -m ../.cache/tools/apk)
mkdir -p target/bin
rm -f target/bin/*
libraries=$([ ! -d "$unpacked" ] || find "$unpacked" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
for tool in aapt aapt2 zipalign dexdump apksigner; do
    command -v "$tool" > /dev/null || [ ! -x "$unpacked/usr/bin/$tool" ] && continue
    command=("env" "LD_LIBRARY_PATH=$libraries" "$unpacked/usr/bin/$tool")
    [ "$tool" = apksigner ] && command=(java -jar "$unpacked/usr/share/java/apksigner.jar") # the script looks for it below /usr
    { echo '#!/bin/sh'; printf 'exec'; printf " '%s'" "${command[@]}"; echo ' "$@"'; } > "target/bin/$tool"
    chmod +x "target/bin/$tool"
done
PATH=$PWD/target/bin:$PATH
flags=(-B -q ${MVN_FLAGS:-})
aapt2=$(command -v aapt2 || true)
if [ -n "$aapt2" ]; then
    flags+=(-Papp "-Daapt2=$aapt2")
else
    echo "test-android: SKIPPED: the app and its screens: aapt2 is not here (make tools, or apt-get install aapt)"
fi
lacking=
for tool in aapt apksigner zipalign dexdump; do command -v "$tool" > /dev/null || lacking+=" $tool"; done
if [ -z "$lacking" ]; then
    flags+=(-Papk)
else
    echo "test-android: SKIPPED: the APK:$lacking not here (make tools, or apt-get install$lacking)"
fi

fixtures=$PWD/target/fixtures
mkdir -p "$fixtures"
(cd ../tests && "$python" -m android "$fixtures") > "$fixtures.log" 2>&1 || { tail -30 "$fixtures.log"; exit 1; }

build() { # mvn, which is skipped where its libraries can be had from nowhere
    local log=target/maven.log
    if mvn "${flags[@]}" "$@" > "$log" 2>&1; then cat "$log"; return; fi
    cat "$log"
    if grep -qE 'Could not transfer artifact|Cannot access [^ ]+ .* in offline mode|Unknown host|Network is unreachable' "$log"; then
        echo "test-android: SKIPPED: libraries are missing and Maven Central cannot be reached"
        exit 0
    fi
    exit 1
}

if [ -n "$artefacts" ]; then
    [ -n "$aapt2" ] || exit 0 # said above
    rm -rf target/carried
    "$(dirname "$python")/pocketbert" pack -m "$artefacts" -o target/carried --for android -q
    # the other tests know the tiny models; the APK is built with the folder
    build clean verify "-Dassets=$PWD/target/carried" "-Dartefacts=$artefacts" -Dtest=CarriedModelTest -Dsurefire.failIfNoSpecifiedTests=false
    (cd ../tests && "$python" -m android.imported_record ../android_demo/target/records/carried.json "$artefacts")
    echo "test-android: the app opens $artefacts and answers as Python recorded"
    exit 0
fi

rm -rf ./*/target/surefire-reports* # those of a module that is left out today would be counted
# Java 17 is what the demo compiles with; tests with API level 36 need Java 21.
build clean verify
newer=
for home in /usr/lib/jvm/*; do
    major=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$home/release" 2> /dev/null || true)
    [ "${major:-0}" -ge 21 ] && newer=$home
done
if [ -z "$newer" ]; then
    echo "test-android: SKIPPED: the app under API level 36: Robolectric needs a JDK 21 or newer there"
elif [ -n "$aapt2" ]; then
    JAVA_HOME=$newer build verify -Psdk36 -pl app -am '-Dtest=org/pocketbert/demo/**/*Test' -Dsurefire.failIfNoSpecifiedTests=false
fi
if [ -n "$aapt2" ]; then
    phone=$fixtures/phones/text-classification
    for record in benchmark carried; do
        (cd ../tests && "$python" -m android.imported_record "../android_demo/target/records/$record.json" "$phone")
    done
fi
"$python" count_tests.py
