/*
 * vmm/serial.h - a 16550 that only talks: the console log
 * Input never comes. Output goes to the log as it is; a log that takes no more loses it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "vmm/state.h"

enum { SERIAL_PORT = 0x3f8, SERIAL_PORTS = 8, SERIAL_IRQ = 4 };

struct serial {
	uint8_t ier, lcr, mcr, scr, dll, dlm, fcr;
	bool thr_empty_pending; /* the interrupt that says so */
	void (*out)(void *arg, uint8_t byte);
	void (*interrupt)(void *arg, unsigned irq);
	void *arg;
};

uint8_t serial_read(struct serial *s, unsigned port);
void serial_write(struct serial *s, unsigned port, uint8_t value);
void serial_save(const struct serial *s, struct state_out *o);
int serial_load(struct serial *s, struct state_in *i);
