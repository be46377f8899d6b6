# The front door; what happens is in tools/ and meson.build.
.PHONY: all help unit up test test-kvm test-hostile soak check check-images check-debian asan fuzz fmt bench clean
all: # compiles our programs into build/
	tools/build
help: # this list
	@sed -nE 's/^([a-z-]+):.*# (.*)/\1\t\2/p' Makefile | expand -t 15
unit: # unit tests in seconds, as any user; T=host, T=test_fork, T=slow or T=all chooses
	tools/unit "$(T)"
up: # everything, from a fresh Debian to a hello from inside a sandbox
	tools/up
test: # sets up what tests need and runs them all
	tools/test
test-kvm: # the engine suite behind KVM: the host's, or an emulated one
	tools/up --no-hello --kvm
	tools/test-kvm
test-hostile: # guests, tenants and neighbours that mean harm; under ten minutes
	tools/up --no-hello
	tools/test-hostile
soak: # as test, with long loops, all attacks, and a million inputs for each parser; hours
	PANDA_SOAK=1 tools/test
	FUZZ_RUNS=1000000 tools/fuzz
check: # format, arrows between rooms, static analysis
	tools/check
check-images: # makes every template's image once more and compares the bytes; minutes
	tools/check-images
check-debian: # another release of Debian from the system's mirror, as FROM debian:X has it; minutes
	tools/up --no-hello
	PANDA_DEBIAN="$${PANDA_DEBIAN:-trixie}" /usr/bin/python3 -m pytest -q tests/e2e/test_debian.py
asan: # unit tests and fuzz corpus with address and undefined behaviour sanitizers
	tools/test --unit
fuzz: # each target for FUZZ_SECONDS (20), or with FUZZ_RUNS inputs
	tools/fuzz
fmt: # formats all C files
	git ls-files -z '*.c' '*.h' | xargs -0 -r clang-format -i
bench: # all benchmarks, with their targets
	PANDA_TEMPLATES="$$(tools/image --list | xargs)" tools/up --no-hello --kvm
	/usr/bin/python3 tests/bench/bench.py
clean: # removes what was built; what was downloaded stays
	rm -rf build build-asan build-fuzz build-unit
