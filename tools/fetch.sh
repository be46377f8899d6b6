# shellcheck shell=bash disable=SC2154 # tools/image, which sources this, sets what "Wants" names
# tools/fetch.sh - what images are made of and comes from elsewhere: packages of Debian and of npm; sourced by tools/image
# Each is fetched once and kept. What is kept is believed when its digest is the one we were told by those we trust: apt's signed lists,
# the template. Anything else (half of a file, one that a dying host has left) is fetched again.
# Wants: $apt and $fetched (where they are kept), $suite, $tree, $scratch, $epoch, $max_age (days), $refresh. Most of it runs under
# step, where set -e does not hold: hence each '|| return'.

# apt_tells [OPTION]...: in apt_opts, how the host's apt works for the tree
apt_tells()
{
	mkdir -p "$apt"/{lists,archives}/partial "$scratch"/{lists,none}/partial "$tree/etc/apt/preferences.d" || return
	"$top/tools/debian-sources" "$suite" "$suite-updates" "$suite-security" >"$scratch/sources.list" || return
	apt_opts=(-y -q -o "Dir=$tree" -o "Dir::State::lists=$scratch/lists" -o Dir::Cache::pkgcache= -o "Dir::Cache::srcpkgcache=$scratch/lists.bin"
		-o "Dir::Etc::sourcelist=$scratch/sources.list" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none
		-o APT::Install-Recommends=false -o APT::Update::Error-Mode=any -o Dpkg::Use-Pty=false -o Debug::NoLocking=true "$@")
	export DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH=$epoch LC_ALL=C.UTF-8
}

# update_lists: those of an hour ago will do; without a network, those there are
update_lists()
{
	[[ -z $(find "$apt/updated" -mmin -60 2>/dev/null) ]] || ((refresh)) || return 0
	if apt-get "${apt_opts[@]}" -o "Dir::State::lists=$apt/lists" update; then
		touch "$apt/updated"
	elif [[ -e $apt/updated ]]; then
		echo "there are no new lists to be had: going on with those of $(date -r "$apt/updated")"
	else
		return 1
	fi
}

# fetch_packages PACKAGE...: they and what they need go to $apt/archives; $scratch/debs says which these are, and $scratch/lists has what
# apt knows: it stays, whoever updates the lists meanwhile. Of a file that is there already apt would only look at the size.
fetch_packages()
{
	local sums=$scratch/sums
	(
		flock 9
		update_lists && find "$apt/lists" -maxdepth 1 -type f -exec cp -p --reflink=auto -t "$scratch/lists" {} + &&
			apt-get "${apt_opts[@]}" -qq -o "Dir::Cache::archives=$scratch/none" -o Acquire::ForceHash=SHA256 --print-uris install "$@" \
				>"$scratch/uris" || exit
		sed -nE "s/^'[^']*' ([^ ]+) [0-9]+ SHA256:([0-9a-f]{64})$/\2  \1/p" "$scratch/uris" >"$sums"
		(($(wc -l <"$sums") == $(wc -l <"$scratch/uris"))) || { echo "apt names packages without their digests" && exit 1; }
		cut -d' ' -f3 "$sums" >"$scratch/debs"
		cd "$apt/archives" || exit
		sha256sum --check --quiet "$sums" 2>/dev/null | sed -n 's/: FAILED$//p' | xargs -r rm -fv
		if ! xargs -r ls <"$scratch/debs" >/dev/null 2>&1; then
			apt-get "${apt_opts[@]}" -o "Dir::Cache::archives=$apt/archives" --download-only install "$@" && sha256sum --check --quiet "$sums" || exit
		fi
		xargs -r touch <"$scratch/debs" # so old is our last use of them (tools/cache)
	) 9>"$apt/lock"
}

# too_old FILE: there is none, or it shall be fetched again
too_old()
{
	[[ ! -s $1 ]] || ((refresh)) || [[ -n $(find "$1" -mtime "+$max_age") ]]
}

# fetch_borrowed SUITE PACKAGE: prints the path of that suite's .deb. Such a package is unpacked without what it depends on.
fetch_borrowed()
{
	local from=$1 package=$2 dir=$fetched/$1/$2 own=$scratch/apt-$1 deb opts
	deb=$(find "$dir" -name '*.deb' 2>/dev/null | head -n 1 || :)
	[[ -z $deb ]] || (cd "$dir" && sha256sum --check --status sum 2>/dev/null) || { rm -f "$deb" && deb=; }
	if too_old "${deb:-$dir/none}"; then
		mkdir -p "$dir" "$own"/{lists/partial,cache/archives/partial,new}
		opts=(-o "Dir::State=$own" -o Dir::State::status=/dev/null -o "Dir::Cache=$own/cache" -o Dir::Etc::sourceparts=/dev/null
			-o "Dir::Etc::sourcelist=$own/sources.list" -o APT::Sandbox::User=root -o 'Acquire::Languages=none')
		if [[ ! -s $own/sources.list ]]; then
			"$top/tools/debian-sources" "$from" >"$own/sources.list"
			say "image: reading what $from has"
			apt-get "${opts[@]}" -qq update >&2 || rm -f "$own/sources.list"
		fi
		rm -f "$own"/new/*
		if (cd "$own/new" && apt-get "${opts[@]}" -qq download "$package" >&2 && sha256sum ./*.deb >sum); then
			rm -f "$dir"/*.deb
			mv "$own"/new/* "$dir/"
			deb=$(find "$dir" -name '*.deb')
		elif [[ -z $deb ]]; then
			die "could not fetch $package of $from" "check the network, then run this again"
		fi
		touch "$deb" # so old is our look at it, not the package
	fi
	echo "$deb"
}

# fetch_npm NAME VERSION INTEGRITY: prints the path of the package; its content is what the template names, or nothing
fetch_npm()
{
	local name=$1 version=$2 want=$3 file=$fetched/npm/$1-$2.tgz have
	have=$(npm_digest "$file")
	if [[ $have != "$want" ]]; then
		type npm >/dev/null 2>&1 || die "npm is missing, it fetches '$name'" "install it: apt-get install --no-install-recommends npm"
		mkdir -p "$(dirname "$file")" "$scratch/npm" # a name may have a scope
		(cd "$scratch/npm" && npm pack --silent --pack-destination "$scratch/npm" "$name@$version" >&2) ||
			die "npm could not fetch $name@$version" "check the network and 'npm config get registry', then run this again"
		mv "$scratch"/npm/*.tgz "$file"
		have=$(npm_digest "$file")
	fi
	[[ $have == "$want" ]] || { rm -f "$file" && die "$name@$version is not what the template names: $have" \
		"if that is what the registry's owner has published since, change the template"; }
	touch "$file" # as above
	echo "$file"
}
npm_digest()
{
	[[ ! -s $1 ]] || echo "sha512-$(openssl dgst -sha512 -binary "$1" | base64 -w0)"
}
