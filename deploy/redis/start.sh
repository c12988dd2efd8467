#!/bin/sh
# Starts redis-server with redis.conf (the queue) or cache.conf and the users that margay needs; nobody else may log in.
#
#   REDIS_PASSWORD      of user "margay" (gateways, workers): its own keys, no administration
#   REDIS_PROBE_PASSWORD  of user "probe" (health checks, KEDA, exporters); without: no such user. It can read how long streams are
#                       and how long the disk takes.
#   REDIS_MAXMEMORY     [2gb]     REDIS_CONF [/etc/redis/redis.conf]     further arguments go to redis-server
set -eu
conf=${REDIS_CONF:-/etc/redis/redis.conf}
: "${REDIS_PASSWORD:?is not set}"
case $REDIS_PASSWORD in *[[:space:]\"\']*) echo "start.sh: REDIS_PASSWORD has a blank or a quote in it" >&2; exit 2 ;; esac

# Scripts do the queue's and the cache's work, and what they call is checked against these rights too.
margay="on >$REDIS_PASSWORD resetkeys ~margay:* resetchannels -@all +@read +@write +@scripting +@connection +time -@dangerous -script|flush -script|kill +info +client|unblock -keys"
set -- "$conf" --maxmemory "${REDIS_MAXMEMORY:-2gb}" --user default off --user margay $margay "$@"
if [ -n "${REDIS_PROBE_PASSWORD:-}" ]; then
    case $REDIS_PROBE_PASSWORD in *[[:space:]\"\']*) echo "start.sh: REDIS_PROBE_PASSWORD has a blank or a quote in it" >&2; exit 2 ;; esac
    set -- "$@" --user probe on ">$REDIS_PROBE_PASSWORD" resetkeys "~margay:*" resetchannels -@all +ping +auth +hello "+client|setname" +select +info +xlen +xpending "+xinfo|groups" "+xinfo|stream" "+latency|latest" +command
fi
exec redis-server "$@"
