# shellcheck shell=sh
# Makes the root file system of a Debian release, inside a machine of the base template: sh -s SUITE
# stdout: a tar of it. stderr is for people; when this fails, its last line says why. The mirror is the one this machine has, and
# apt checks what comes from there.
set -eu
exec 3>&1 >&2
suite=$1
export DEBIAN_FRONTEND=noninteractive

# try COMMAND...: its stdout is the archive; of what apt calls errors, the first is the reason
try()
{
	{ "$@" 2>&1 >&3 || touch /root/failed; } | tee /root/said
	[ -e /root/failed ] || return 0
	sed -n 's/^E: //p' /root/said | head -n 1
	exit 1
}

try apt-get -q update 3>&1
command -v mmdebstrap >/dev/null || try apt-get -qy --no-install-recommends install mmdebstrap 3>&1

# Of a release also what came since; sid has no such suites.
mirror()
{
	# shellcheck disable=SC2016 # apt fills these in
	apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | sed -n "s/^$1 //p" | head -n 1
}
main=$(mirror Debian)
security=$(mirror Debian-Security)
{
	echo "deb $main $suite main"
	if [ "$suite" != sid ]; then
		echo "deb $main $suite-updates main"
		[ -z "$security" ] || echo "deb $security $suite-security main"
	fi
} >/root/sources.list
try mmdebstrap --variant=minbase --mode=root --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io --format=tar "$suite" - /root/sources.list
