#!/usr/bin/env bash
# Builds the documentation as a site in build/site; a warning is an error.
#
#   bash launch/docs.sh [mkdocs build arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$DS_DIP_ROOT"

# Not --quiet: that would hide warnings from --strict too.
mkdir -p build
NO_MKDOCS_2_WARNING=1 mkdocs build --strict --clean "$@" >build/docs.log 2>&1 || {
    grep -v '^INFO' build/docs.log >&2
    exit 1
}
# Nothing on a page may be fetched from elsewhere: it has to work offline.
if grep -rEo --include '*.html' '<(script|img|iframe)[^>]+src="?https?://[^" >]+' build/site ||
    grep -rEo --include '*.html' '<link[^>]+rel="?(stylesheet|preconnect|preload|icon)[^>]+href="?https?://[^" >]+' build/site ||
    grep -rEo --include '*.css' '(@import|url\()[ "'"'"']*https?://[^"'"'"' )]+' build/site; then
    echo "docs: these pages fetch from elsewhere" >&2
    exit 1
fi
echo "docs: build/site/index.html; python -m http.server -d build/site serves it"
