"""Parts of the script that measures on a Mac; `script.mac_script` joins them into one file.

Each part imports from the standard library and from the other parts only, with all imports at its top.
"""
