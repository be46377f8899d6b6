#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "um/kvm.h"

static void the_flag_is_found_wherever_it_stands(void **state)
{
	assert_string_equal(kvm_cpu_flag("processor\t: 0\nflags\t\t: fpu vmx sse\n"), "vmx");
	assert_string_equal(kvm_cpu_flag("processor\t: 0\nflags\t\t: svm\n"), "svm");
	assert_string_equal(kvm_cpu_flag("x\nflags\t: fpu svm\nprocessor : 1\nflags : fpu"), "svm");
}

static void parts_of_words_and_other_lines_do_not_count(void **state)
{
	assert_null(kvm_cpu_flag(""));
	assert_null(kvm_cpu_flag("processor\t: 0\n"));
	assert_null(kvm_cpu_flag("x\nflags\t\t: fpu svm_lock avmx vmxon\nbugs\t\t: vmx svm\n"));
	assert_null(kvm_cpu_flag("x\nflags"));
	assert_null(
	    kvm_cpu_flag("model name\t: a vmx cpu\nflags\t\t: fpu\nvmx flags\t: vnmi svm\n"));
}

static void whatever_kvm_there_is_it_is_explained(void **state)
{
	char why[200] = "";
	autoclose int fd = kvm_open(why, sizeof(why));

	assert_true(fd >= -4095);
	assert_true(why[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_flag_is_found_wherever_it_stands),
	    cmocka_unit_test(parts_of_words_and_other_lines_do_not_count),
	    cmocka_unit_test(whatever_kvm_there_is_it_is_explained),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
