"""Check a signed APK as Android reads it: native libraries and model files are stored and aligned, and nothing is missing.

python check_apk.py APK TOOL_OUTPUT_OF_AAPT
"""

import struct
import sys
import zipfile
from pathlib import Path

PAGE = 4096  # what apksigner keeps; the TFLite 2.16 library is linked for pages of 4 KB anyway, not for 16 KB
WORD = 4
NEEDED = ("classes.dex", "resources.arsc", "AndroidManifest.xml", "assets/artifacts.json", "assets/tokenizer.json")
STATED = ("package: name='org.pocketbert.demo'", "sdkVersion:'24'", "targetSdkVersion:'36'", "launchable-activity")


def offset(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin: its local header has a name and extra bytes of any length before them."""
    archive.fp.seek(entry.header_offset + 26)
    name, extra = struct.unpack("<HH", archive.fp.read(4))
    return entry.header_offset + 30 + name + extra


def problems(path: str) -> list[str]:
    """Return what is wrong with the APK, a sentence each."""
    found = []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for entry in archive.infolist():
            native, model = entry.filename.endswith(".so"), entry.filename.endswith((".onnx", ".tflite"))
            if (native or model) and entry.compress_type != zipfile.ZIP_STORED:
                found.append(f"{entry.filename} is compressed: it cannot be mapped into memory")
            elif (native or model) and offset(archive, entry) % (PAGE if native else WORD):
                found.append(f"{entry.filename} begins at {offset(archive, entry)}, not at a multiple of the page size")
    native_names = [f"lib/{abi}/libtensorflowlite_jni.so" for abi in ("arm64-v8a", "x86_64")]
    found += [f"{wanted} is missing" for wanted in (*NEEDED, *native_names) if wanted not in names]
    return found


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    badging = Path(sys.argv[2]).read_text(encoding="utf-8")
    found = problems(sys.argv[1])
    found += [f"aapt does not print {wanted}" for wanted in STATED if wanted not in badging]
    for line in found:
        print(f"apk: {line}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
