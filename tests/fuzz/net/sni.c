/*
 * The first bytes of a connection. A name that was found is a clean one, and no beginning of the
 * same bytes says another.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "net/sni.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char name[SNI_NAME_MAX + 1], early[SNI_NAME_MAX + 1];
	int r = sni_parse(data, size, name);

	if (r != 0 && r != -EAGAIN && r != -ENOENT && r != -EPROTO)
		abort();
	if (r == -EAGAIN && size >= SNI_BYTES_MAX)
		abort(); /* nobody may be asked for more for ever */
	if (r == 0 && (strlen(name) > SNI_NAME_MAX || !name[0] ||
	               name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.")]))
		abort();
	for (size_t n = 0; n < size && n < 300; n++) {
		int p = sni_parse(data, n, early);

		if (p == -EAGAIN)
			continue;
		if (p != r && !(p == -EPROTO && r == -EPROTO))
			abort();
		if (p == 0 && strcmp(early, name) != 0)
			abort();
	}
	return 0;
}
