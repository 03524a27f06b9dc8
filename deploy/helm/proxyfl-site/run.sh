#!/bin/sh
# Runs the site in a pod, which Kubernetes starts again whatever it ends with. So the pod waits where
# a site must not start again: before a manifest is accepted, and after the end of its part. A failure
# ends the pod with its code, and Kubernetes tries again, ever more slowly.
site=${SITE:-/site}
asked=
trap 'asked=1' TERM INT

wait_here() {
  while [ -z "$asked" ]; do
    sleep 1
  done
  exit 0
}

if [ ! -e "$site/manifests" ]; then
  echo "No manifest yet. Card: proxyfl node card $site. Then: proxyfl node accept $site manifest.toml"
fi
while [ ! -e "$site/manifests" ]; do
  [ -z "$asked" ] || exit 0
  sleep 1
done
proxyfl node run "$site"
code=$?
[ -z "$asked" ] || exit 0
case $code in
0 | 10 | 11 | 12 | 13)
  echo "The site has ended with $code and does not start again by itself: docs/reference/exit-codes.md"
  wait_here
  ;;
esac
exit $code
