# shellcheck shell=bash disable=SC2034 # those that source this use what it sets
# tools/lib.sh - what our scripts share; sourced, never run
# Gives: $top (the tree), $PANDA_CACHE, say, die, step, need_root, has_kvm, make_scratch, lock. Sets -euo pipefail.
# Progress goes to stderr, so that stdout can carry a script's answer.

set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${PANDA_CACHE:=/var/cache/panda}"
[[ $PANDA_CACHE == /* ]] || PANDA_CACHE=$PWD/$PANDA_CACHE
export PANDA_CACHE

# A parent make's jobserver and flags are not for the makes we start.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

say()
{
	printf '[%4ds] %s\n' "$SECONDS" "$*" >&2
}

# die WHAT [NEXT STEP]...: the exit status tells our callers, too, that the reason is on the screen
said_why=64
die()
{
	printf 'error: %s\n' "$1" >&2
	shift
	(($# == 0)) || printf ' next: %s\n' "$@" >&2
	exit "$said_why"
}

need_root()
{
	((EUID == 0)) || die "$1 needs root" "run it again as root (sudo make ...)"
}

# has_kvm PANDA: is there hardware virtualization, and does it work?
has_kvm()
{
	local said
	said=$("$1" doctor 2>/dev/null || :)
	grep -q '^ok  *engine kvm ' <<<"$said"
}

step_pid=
scratch=
lib_exit()
{
	local rc=$?
	((rc == 0 || rc == said_why || rc >= 128)) || printf 'error: %s stopped without a word (exit %d)\n' "$0" "$rc" >&2
	[[ -z $step_pid ]] || kill "$step_pid" 2>/dev/null || :
	[[ -z $scratch ]] || rm -rf "$scratch"
}
trap lib_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# make_scratch DIR: a fresh directory $scratch inside DIR, removed when the script ends.
make_scratch()
{
	mkdir -p "$1"
	scratch=$(mktemp -d "$1/scratch.XXXXXX")
}

# step TITLE LOG PATTERN TOTAL CMD...
# Runs CMD with all its output in LOG and shows that it lives: on a terminal one line that is rewritten every second,
# elsewhere one line every 5 s. With a PATTERN, the lines of LOG that match it are counted, of about TOTAL.
step()
{
	local title=$1 log=$2 pattern=$3 total=$4 start=$SECONDS shown=$SECONDS every=5 text rc=0
	shift 4
	[[ -t 2 ]] && every=1
	"$@" >"$log" 2>&1 </dev/null &
	step_pid=$!
	while kill -0 "$step_pid" 2>/dev/null; do
		sleep 0.2
		((SECONDS - shown >= every)) || continue
		shown=$SECONDS
		text="$title: $((SECONDS - start)) s"
		[[ -z $pattern ]] || text+=", $(grep -c -E -- "$pattern" "$log" || :) of about $total"
		if [[ -t 2 ]]; then printf '\r\033[K[%4ds] %s' "$SECONDS" "$text" >&2; else say "$text"; fi
	done
	wait "$step_pid" || rc=$?
	step_pid=
	[[ ! -t 2 ]] || printf '\r\033[K' >&2
	if ((rc != 0)); then
		say "$title: failed after $((SECONDS - start)) s; the end of $log:"
		tail -n 25 "$log" | sed 's/^/    /' >&2
		return "$rc"
	fi
	say "$title: done in $((SECONDS - start)) s"
}

# lock FILE WHAT: one of us at a time. The lock lives as long as any process we started, so that a make orphaned by
# kill -9 keeps the next one waiting instead of sharing its tree.
lock()
{
	mkdir -p "$(dirname "$1")"
	exec {lock_fd}>"$1"
	flock -n "$lock_fd" && return
	say "another process is $2; waiting for it (lock: $1)"
	flock "$lock_fd"
}
