/*
 * reseed.c - what reseed.js cannot say in JavaScript: stir the kernel's entropy into the OpenSSL
 * that is inside node.
 *
 * RAND_add() has the generator from which those of all threads are seeded take new entropy; the
 * others notice when they are used next. tools/image compiles this with the image's own compiler.
 * It uses no header and no libc: what node exports of Node-API and OpenSSL is the same in all
 * versions, and so this fits every node that may come.
 */
#define GETRANDOM   318
#define AUTO_LENGTH ((unsigned long)-1)

typedef void *env, *value;

extern int napi_create_function(env e, const char *name, unsigned long length,
                                value (*call)(env e, void *info), void *data, value *ret);
extern int napi_set_named_property(env e, value object, const char *name, value v);
extern void RAND_add(const void *data, int size, double entropy);

static value add(env e, void *info)
{
	char fresh[48];
	long n = GETRANDOM;

	(void)e;
	(void)info;
	__asm__ volatile("syscall"
	                 : "+a"(n)
	                 : "D"(fresh), "S"(sizeof(fresh)), "d"(0)
	                 : "rcx", "r11", "memory");
	if (n > 0)
		RAND_add(fresh, (int)n, (double)n);
	return 0; /* undefined */
}

value napi_register_module_v1(env e, value exports)
{
	value f;

	if (napi_create_function(e, "add", AUTO_LENGTH, add, 0, &f) == 0)
		napi_set_named_property(e, exports, "add", f);
	return exports;
}
