#!/usr/bin/env bash
# Builds the documentation as a site in build/site; a warning is an error.
#
#   bash launch/docs.sh [mkdocs build arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$DS_DIP_ROOT"

NO_MKDOCS_2_WARNING=1 mkdocs build --strict --clean --quiet "$@"
# Nothing on a page may be fetched from elsewhere: it has to work offline, from file:// too.
if grep -rEl --include '*.html' '<(script|link|img|iframe)[^>]+(src|href)="?https?://' build/site |
    xargs -r grep -HoE '<(script|img|iframe|link rel="?(stylesheet|preconnect|preload|icon))[^>]+(src|href)="?https?://[^" >]+'; then
    echo "docs: these pages fetch from elsewhere" >&2
    exit 1
fi
echo "docs: build/site/index.html"
