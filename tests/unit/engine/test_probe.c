#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "engine/probe.h"

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

static void each_reason_has_its_own_words(void **state)
{
	static const struct {
		struct kvm_found found;
		int r;
		const char *says;
	} cases[] = {
	    {{-ENOENT, NULL, 0}, -ENOENT, "the cpu has neither svm nor vmx"},
	    {{-ENOENT, "vmx", 0}, -ENOENT, "load the module kvm_amd or kvm_intel"},
	    {{-EACCES, "svm", 0}, -EACCES, "this user may not open it"},
	    {{-ENXIO, "svm", 0}, -ENXIO, "does not open (No such device or address)"},
	    {{0, NULL, 0}, -ENODEV, "opens, but the cpu has neither svm nor vmx"},
	    {{0, "svm", -EIO}, -EIO, "a tiny guest does not run on it (Input/output error)"},
	    {{0, "svm", 0}, 0, "hardware virtualization works (svm)"},
	};
	char why[200];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(kvm_explain(&cases[i].found, why, sizeof(why)), cases[i].r);
		if (!strstr(why, cases[i].says))
			fail_msg("'%s' is not in '%s'", cases[i].says, why);
	}
}

static void auto_is_kvm_where_it_works_else_um_else_nothing(void **state)
{
	assert_non_null(strstr(engine_auto(true, true), "auto is kvm"));
	assert_non_null(strstr(engine_auto(true, false), "auto is kvm"));
	assert_non_null(strstr(engine_auto(false, true), "auto is um"));
	assert_string_equal(engine_auto(false, false), "neither kvm nor um works");
}

static void whatever_kvm_there_is_it_is_explained(void **state)
{
	char why[200] = "";
	autoclose int fd = kvm_open(why, sizeof(why));

	assert_true(fd >= -4095);
	assert_true(why[0]);
	why[0] = 0;
	um_usable(why, sizeof(why));
	assert_non_null(strstr(why, "PAGEMAP_SCAN"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_flag_is_found_wherever_it_stands),
	    cmocka_unit_test(parts_of_words_and_other_lines_do_not_count),
	    cmocka_unit_test(each_reason_has_its_own_words),
	    cmocka_unit_test(auto_is_kvm_where_it_works_else_um_else_nothing),
	    cmocka_unit_test(whatever_kvm_there_is_it_is_explained),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
