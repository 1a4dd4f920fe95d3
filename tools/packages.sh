#!/usr/bin/env bash
# usage: packages.sh COMMAND:PACKAGES...
# Installs the Debian packages whose commands are missing: by root, else it says which.
set -euo pipefail

missing=()
for pair in "$@"; do
    read -ra packages <<< "${pair#*:}"
    command -v "${pair%%:*}" > /dev/null || missing+=("${packages[@]}")
done
[ ${#missing[@]} = 0 ] && exit
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "This needs Debian's packages ${missing[*]}: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
