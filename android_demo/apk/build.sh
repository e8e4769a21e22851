#!/usr/bin/env bash
# Build and check a signed APK without Gradle: API check, D8, aapt2's package, zip, zipalign, apksigner.
#
# Called by apk/pom.xml with the folders of the other modules; ANDROID_ALL is the framework that D8 compiles against. The key is made
# here and is good for nothing but this check. Never installed on a phone.
set -euo pipefail
trap 'echo "apk/build.sh: line $LINENO failed; see apk/target/build/*.log"' ERR
: "${ANDROID_ALL:?path of the jar android-all}"
demo=$(cd "$(dirname "$0")/.." && pwd)
out=$demo/apk/target
tools=$out/tools
rm -rf "$out/build"
mkdir -p "$out/build/dex"
cd "$out/build"

jars=()
for module in core engine-ort engine-tflite app; do
    jars+=("$(ls "$demo/$module/target/$module"-*.jar)")
done
own=("${jars[@]}")
jars+=("$tools/gson.jar" "$tools/onnxruntime-classes.jar" "$tools/tflite-classes.jar")
(cd "$demo/vendor-tflite/target/classes" && zip -qr "$tools/tflite-classes.jar" org)
rm -f "$tools/onnxruntime-classes.jar"
zip -q "$tools/onnxruntime.jar" 'ai/onnxruntime/*.class' 'ai/onnxruntime/*/*.class' --copy --out "$tools/onnxruntime-classes.jar"
jdk=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")

# 1. nothing newer than API 24, after D8 has rewritten Java 17; first a class that the check must refuse
check() { java -cp "$tools/animal-sniffer.jar:$tools/asm.jar" "$demo/apk/ApiCheck.java" "$tools/api24.signature" org.pocketbert.demo.NewerApi "$@"; }
d8() { java -cp "$tools/r8.jar" com.android.tools.r8.D8 --min-api 24 --lib "$jdk" --lib "$ANDROID_ALL" "$@"; }
mkdir newer
echo 'class Newer { byte[] all(java.io.InputStream in) throws java.io.IOException { return in.readAllBytes(); } }' > newer/Newer.java
javac --release 17 -d newer newer/Newer.java
(cd newer && zip -q ../newer.jar Newer.class)
if check newer.jar 2> newer.log; then echo "apk: the API check accepts InputStream.readAllBytes"; exit 1; fi
d8 --classfile --release --output desugared.jar "${own[@]}" "$tools/gson.jar" --classpath "$tools/onnxruntime-classes.jar" --classpath "$tools/tflite-classes.jar" 2> d8.log
check desugared.jar

# 2. dex, package, sign
d8 --release --output dex "${jars[@]}" 2>> d8.log
cp "$demo/app/target/aapt2/resources.ap_" unaligned.apk
zip -qXj unaligned.apk dex/classes.dex
for abi in arm64-v8a x86_64; do
    mkdir -p "lib/$abi"
    cp "$demo/vendor-tflite/target/aar/jni/$abi/libtensorflowlite_jni.so" "lib/$abi/"
done
zip -qX0rD unaligned.apk lib
zipalign -f -p 4 unaligned.apk aligned.apk
keytool -genkeypair -keystore key.jks -storepass pocketbert -alias demo -keyalg RSA -keysize 2048 -validity 30 \
    -dname "CN=PocketBERT demo" 2> /dev/null
apksigner sign --ks key.jks --ks-pass pass:pocketbert --min-sdk-version 24 --out pocketbert-demo.apk aligned.apk
apksigner verify -v --min-sdk-version 24 pocketbert-demo.apk > verified.log
grep -q "^Verified using v2 scheme.*true" verified.log
aapt dump badging pocketbert-demo.apk > badging.log 2>&1
python3 "$demo/apk/check_apk.py" pocketbert-demo.apk badging.log
dexdump -f dex/classes.dex > dexdump.log
bytes() { wc -c < "$1"; }
echo "apk: $(bytes pocketbert-demo.apk) bytes, verified; dex $(bytes dex/classes.dex) bytes"
