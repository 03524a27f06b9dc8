#!/bin/sh
# Makes three sites below the folder $1 and one manifest that each has signed; does nothing if they
# are there. The setup of deploy/compose.yaml. In a real federation each institution does its own
# part, and fingerprints are compared by telephone: docs/start/three-sites.md.
set -eu
sites=$1
[ ! -e "$sites/north/.ready" ] || exit 0

study=$(mktemp -d)/study
for name in north south east; do
  proxyfl node init "$sites/$name" --name "$name" --address "$name:7443" --data digits
done
proxyfl federation new "$study" \
  "$sites/north/north.card.toml" "$sites/south/south.card.toml" "$sites/east/east.card.toml" \
  --shape 1,8,8 --classes 0,1,2,3,4,5,6,7,8,9 --rounds "${ROUNDS:-5}"
for name in north south east; do
  proxyfl node accept "$sites/$name" "$study/manifest.toml"
done
# the sites do not run as root
if [ "$(id -u)" = 0 ]; then
  chown -R 1000:1000 "$sites/north" "$sites/south" "$sites/east"
fi
touch "$sites/north/.ready"
