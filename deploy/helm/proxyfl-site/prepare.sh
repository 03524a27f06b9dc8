#!/bin/sh
# Before each start: makes the site's keys and settings once; takes site.toml from the chart, if it
# has one.
set -eu
site=${SITE:-/site}
config=${CONFIG:-/config}
if [ ! -e "$site/key.pem" ]; then
  set -- "$site" --name "$NAME" --data "$DATA"
  [ -z "$ADDRESS" ] || set -- "$@" --address "$ADDRESS"
  [ "$EXAMPLES" = 0 ] || set -- "$@" --examples "$EXAMPLES"
  proxyfl node init "$@"
fi
if [ -e "$config/site.toml" ]; then
  cp "$config/site.toml" "$site/site.toml"
fi
