# The front door; what happens is in tools/ and meson.build.
.PHONY: all up test check asan fmt bench clean
all:
	tools/build
up: # everything, from a fresh Debian to a hello from inside a sandbox
	tools/up
test: # sets up what tests need and runs them all
	tools/test
check: # format, arrows between rooms, static analysis
	tools/check
asan: # unit tests and fuzz corpus with address and undefined behaviour sanitizers
	tools/test --unit
fmt:
	git ls-files -z '*.c' '*.h' | xargs -0 -r clang-format -i
bench:
	tools/up --no-hello
	/usr/bin/python3 tests/bench/bench.py
clean: # the cache in $$PANDA_CACHE stays
	rm -rf build build-asan
