# shellcheck shell=bash disable=SC2154 # the script that sources this sets: kind prefix product target about_objects defaults make_args
# kernel/lib.sh - how a kernel is made of Debian's source package, our patches and a config; sourced by um/build and kvm/build
#
# Prints the directory that holds the product, vmlinux (with symbols), System.map, config and build-id. Its name is a digest of all
# that goes in, so a second run answers at once. Around it, in $PANDA_CACHE/kernel:
#   deb/                   the source package; one that lies here is taken and no network is asked
#   apt/                   an apt configuration of our own, for the suite the package comes from
#   [kvm-]src-VERSION/     tree (unpacked and built), pristine (as shipped, of every file a patch has touched), added (list)
#   [kvm-]KEY/             results
# Every step may be killed at any point: what is complete was renamed into place, the rest is redone.
#
# PANDA_LINUX_DEB=FILE builds from that source package instead.
. "$(dirname "${BASH_SOURCE[0]}")/../tools/lib.sh"

room=$top/kernel/$kind
cache=$PANDA_CACHE/kernel
first_good=2 # of 7.x: the first with what our patches build on
suites=(trixie-backports sid)

# own_apt SUITE CMD...: apt with only that suite, its own lists and an empty idea of what is installed
own_apt()
{
	local dir=$cache/apt/$1 cmd=$2
	shift 2
	"$cmd" -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::State::Lists="$dir/lists" -o Dir::State::Status="$dir/status" -o Dir::Cache="$dir/cache" \
		-o Acquire::Languages=none "$@"
}

# Which linux-source-7.N a suite offers: "N" lines.
offered()
{
	own_apt "$1" apt-cache search --names-only '^linux-source-7\.[0-9]+$' | sed -nE 's/^linux-source-7\.([0-9]+) .*/\1/p' |
		awk -v first="$first_good" '$1 >= first'
}

# Takes the oldest version that is new enough, because it is nearest to the one the patches were made for.
fetch_deb()
{
	local suite n best=999 from='' dir
	for suite in "${suites[@]}"; do
		dir=$cache/apt/$suite
		mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
		: >"$dir/status"
		"$top/tools/debian-sources" "$suite" >"$dir/sources.list"
		step "kernel: package list of $suite" "$dir/update.log" '' '' own_apt "$suite" apt-get update -q || continue
		for n in $(offered "$suite"); do
			((n >= best)) || { best=$n from=$suite; }
		done
		((best != first_good)) || break
	done
	[[ -n $from ]] || die "no linux-source-7.$first_good or newer 7.x in ${suites[*]} on this system's Debian mirror" \
		"see that 'apt-get update' works and that the mirror carries one of these suites; or" \
		"get such a package elsewhere and put the .deb into $cache/deb/"
	((best == first_good)) ||
		say "kernel: linux-source-7.$first_good is gone, taking 7.$best; if a patch fails, it must be carried over"

	make_scratch "$cache"
	cd "$scratch"
	step "kernel: fetching linux-source-7.$best from $from (about 165 MB)" "$cache/apt/download.log" '' '' \
		own_apt "$from" apt-get download -q -o APT::Sandbox::User=root "linux-source-7.$best" ||
		die "could not fetch linux-source-7.$best" "check the network, then run this again"
	cd "$top"
	mv "$scratch"/*.deb "$cache/deb/"
	rmdir "$scratch"
	scratch=
}

find_deb()
{
	if [[ -n ${PANDA_LINUX_DEB-} ]]; then
		[[ -r $PANDA_LINUX_DEB ]] || die "PANDA_LINUX_DEB: cannot read $PANDA_LINUX_DEB"
		deb=$(realpath "$PANDA_LINUX_DEB")
	else
		mkdir -p "$cache/deb"
		deb=$(find "$cache/deb" -name 'linux-source-7.*.deb' | sort -V | sed -n 1p)
	fi
}

# The patches of the series, as absolute names.
series()
{
	[[ ! -e $room/patches/series ]] || sed -E 's/[[:space:]]*(#.*)?$//; /^$/d' "$room/patches/series" | sed "s|^|$room/patches/|"
}

digest_inputs()
{
	local patches p
	mapfile -t patches < <(series)
	for p in "${patches[@]}"; do
		[[ -r $p ]] || die "kernel/$kind/patches/series names $(basename "$p"), which is not there"
	done
	{
		basename "$deb"
		gcc --version | sed -n 1p
		ld --version | sed -n 1p
		dpkg-query -W -f "\${Version}\n" libc6-dev # linked in, static
		cat "$room/config" "$room/build" "${BASH_SOURCE[0]}" "${patches[@]}"
	} | sha256sum | cut -c1-16
}

# Only what our kernels can use: of the rest the build reads Kconfig files and makefiles.
unpack()
{
	local name dir skip=()
	for dir in drivers/{gpu,net/ethernet,net/wireless,media,staging,infiniband,scsi,iio} sound tools/{testing,perf} Documentation \
		arch/{alpha,arc,arm,arm64,csky,hexagon,loongarch,m68k,microblaze,mips,nios2,openrisc,parisc,powerpc,riscv,s390,sh} \
		arch/{sparc,xtensa}; do
		skip+=(--exclude="linux-source-*/$dir/*."{c,h,S,rst,yaml,json,sh,py,svg,txt,dts,dtsi})
	done
	name=$(dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -E 'usr/src/linux-source-7\.[0-9]+\.tar\.xz$') ||
		die "$deb holds no kernel source" "remove it, then run this again"
	# xz -T0 is the machine's cores; the tree is owned by whoever builds
	dpkg-deb --fsys-tarfile "$deb" | tar -xO "$name" | xz -dcT0 |
		tar -x -C "$1" --strip-components=1 --no-same-owner "${skip[@]}"
}

# Sets version, src and tree from deb, and sees that the tree is there.
unpack_once()
{
	version=$(dpkg-deb -f "$deb" Version)
	src=$cache/${prefix}src-$version
	tree=$src/tree
	[[ ! -d $src ]] || return 0
	mkdir -p "$src.new/tree"
	step "kernel: unpacking $version" "$cache/unpack.log" '' '' unpack "$src.new/tree" ||
		die "could not unpack $deb" "if it is damaged, remove it and run this again; else look at free space in $cache"
	mv "$src.new" "$src"
}

# A process that was killed hard may have left half an object behind, which make would take for a whole one. Kbuild
# writes .NAME.cmd when NAME is done: what has none, or an older one, goes.
repair_tree()
{
	local f c
	say "kernel: the last build was interrupted, looking for half-written files"
	while IFS= read -r f; do
		c=${f%/*}/.${f##*/}.cmd
		if [[ -e $c ]]; then
			[[ ! $c -ot $f ]] || rm -f "$f" "$c"
		elif [[ $f == *.[oa] || $f == */vmlinux* || $f == */$target ]]; then
			rm -f "$f"
		fi
	done < <(find "$tree" -newer "$src/building" -type f ! -name '.*')
	rm -f "$tree"/.tmp_vmlinux* "$src/building"
}

# put FROM TO: replaces TO only when it differs, so that make rebuilds only what did
put()
{
	! cmp -s "$1" "$2" || return 0
	mkdir -p "$(dirname "$2")"
	cp "$1" "$2.panda-new"
	mv "$2.panda-new" "$2"
}

# keep_pristine FILE...: copies them as shipped, before a patch changes those of the tree; what is not
# shipped is listed in added
keep_pristine()
{
	local f
	mkdir -p "$src/pristine"
	touch "$src/added"
	for f in "$@"; do
		[[ $f != *..* ]] || die "a patch names the path $f"
		if [[ -e $src/pristine/$f ]] || grep -qxF -- "$f" "$src/added"; then
			:
		elif [[ -e $tree/$f ]]; then
			mkdir -p "$src/pristine/${f%/*}"
			cp -p "$tree/$f" "$scratch/copy"
			mv "$scratch/copy" "$src/pristine/$f"
		else
			echo "$f" >>"$src/added"
		fi
	done
}

# touched_by PATCH...: the files they change, make or remove
touched_by()
{
	(($# == 0)) || sed -nE 's!^(---|\+\+\+) [ab]/([^[:space:]]+).*!\2!p' "$@" | sort -u
}

# copy_pristine DIR FILE...: those of them that were shipped, as shipped
copy_pristine()
{
	local f dir=$1
	shift
	for f in "$@"; do
		[[ -e $src/pristine/$f ]] || continue
		mkdir -p "$(dirname "$dir/$f")"
		cp -p "$src/pristine/$f" "$dir/$f"
	done
}

# The series is applied to copies of the shipped files; then the tree gets what came out.
patch_tree()
{
	local p f touched patches work
	mapfile -t patches < <(series)
	mapfile -t touched < <(touched_by "${patches[@]}")
	make_scratch "$src"
	work=$scratch/work
	mkdir -p "$work"
	keep_pristine "${touched[@]}"
	copy_pristine "$work" "${touched[@]}"
	for p in "${patches[@]}"; do
		patch -d "$work" -p1 --fuzz=0 --no-backup-if-mismatch -N -r - <"$p" >"$src/patch.log" 2>&1 || {
			sed 's/^/    /' "$src/patch.log" >&2
			die "the patch $(basename "$p") does not apply to $version" \
				"carry it over to this source (unpacked in $tree), write it again to kernel/$kind/patches/, and run this; or" \
				"put the linux-source package it was made for into $cache/deb/ and remove the others"
		}
	done

	# Three kinds: out of the patches, as shipped (patched once, no more), and added once, no more.
	while IFS= read -r f; do put "$work/$f" "$tree/$f"; done < <(cd "$work" && find . -type f -printf '%P\n')
	while IFS= read -r f; do
		[[ -e $work/$f ]] || put "$src/pristine/$f" "$tree/$f"
	done < <(cd "$src/pristine" && find . -type f -printf '%P\n')
	while IFS= read -r f; do
		[[ -e $work/$f || -e $src/pristine/$f ]] || rm -f "$tree/$f"
	done <"$src/added"
	rm -rf "$scratch"
	scratch=
	say "kernel: ${#patches[@]} patches applied to $version"
}

# Kconfig drops silently what it does not know or cannot have: compare.
check_config()
{
	local line lost=()
	while IFS= read -r line; do
		if [[ $line =~ ^#\ (CONFIG_[A-Z0-9_]+)\ is\ not\ set$ ]]; then
			! grep -q "^${BASH_REMATCH[1]}=" "$tree/.config" || lost+=("$line")
		elif [[ $line == CONFIG_* ]]; then
			grep -qxF -- "$line" "$tree/.config" || lost+=("$line")
		fi
	done <"$room/config"
	((${#lost[@]} == 0)) && return
	printf '    %s\n' "${lost[@]}" >&2
	die "${#lost[@]} lines of kernel/$kind/config did not come true (above)" \
		"look up what they depend on in the Kconfig files under $tree, and mend kernel/$kind/config"
}

kmake()
{
	make -C "$tree" "${make_args[@]}" KBUILD_BUILD_USER=panda KBUILD_BUILD_HOST=panda KBUILD_BUILD_VERSION=1 \
		KBUILD_BUILD_TIMESTAMP='1970-01-01' RUSTC=false "$@" # a rustc in PATH would show in .config
}

# Lays the config over the architecture's defaults (olddefconfig) or over nothing (allnoconfig).
configure()
{
	if ! cmp -s "$room/config" "$src/config.asked" || [[ ! -e $tree/.config || -n $(find "$tree" -name 'Kconfig*' \
		-newer "$tree/.config" -print -quit) ]]; then
		cp "$room/config" "$tree/.config"
		KCONFIG_ALLCONFIG=$room/config step "kernel: configuring" "$src/config.log" '' '' kmake "$defaults" ||
			die "the kernel's configuration step failed" "see $src/config.log"
		cp "$room/config" "$src/config.asked"
	fi
	check_config
}

# From here on, no other process of ours is in the cache, and deb is there.
take_cache()
{
	lock "$cache/lock" "building a kernel"
	rm -rf "$cache"/scratch.* "$cache"/*src-*/scratch.* "$cache"/*src-*.new "$cache"/result.new # left by a kill
	find_deb
	[[ -z $deb ]] || return 0
	fetch_deb
	find_deb
}

build_kernel()
{
	case ${1-} in
	"") ;;
	--help)
		sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
		return
		;;
	*) die "usage: kernel/$kind/build (no arguments; see --help)" ;;
	esac

	mkdir -p "$cache" 2>/dev/null || die "cannot write to $cache" "run as root, or set PANDA_CACHE to a directory of yours"
	find_deb
	if [[ -n $deb ]]; then
		key=$prefix$(digest_inputs)
		if [[ -e $cache/$key/$product ]]; then
			say "kernel: $key is built already"
			echo "$cache/$key"
			return
		fi
	fi

	take_cache
	key=$prefix$(digest_inputs)

	if [[ ! -e $cache/$key/$product ]]; then
		unpack_once
		[[ ! -e $src/building ]] || repair_tree
		patch_tree
		configure
		touch "$src/building"
		step "kernel: compiling for $kind" "$src/build.log" '^  CC ' "$about_objects" kmake -j"$(nproc)" "$target" ||
			die "the kernel does not compile" "see $src/build.log; 'rm -rf $src' starts over from the package"
		rm -f "$src/building"

		mkdir -p "$cache/result.new"
		cp "$tree/$target" "$cache/result.new/vmlinux"
		strip -o "$cache/result.new/$product" "$tree/$target"
		cp "$tree/System.map" "$cache/result.new/"
		cp "$tree/.config" "$cache/result.new/config"
		readelf -n "$tree/$target" | sed -n 's/^ *Build ID: //p' >"$cache/result.new/build-id"
		[[ -s $cache/result.new/build-id ]] || die "the kernel came out without a build id"
		rm -rf "${cache:?}/$key"
		mv "$cache/result.new" "$cache/$key"
		say "kernel: $product $(stat -c %s "$cache/$key/$product") bytes, build id $(cat "$cache/$key/build-id")"
	fi
	echo "$cache/$key"
}
