#include "vmm/serial.h"

#include <linux/serial_reg.h>

#include "vmm/state.h"

static void update(struct serial *s)
{
	if (s->thr_empty_pending && (s->ier & UART_IER_THRI) && s->interrupt)
		s->interrupt(s->arg, SERIAL_IRQ);
}

uint8_t serial_read(struct serial *s, unsigned port)
{
	bool divisor = s->lcr & UART_LCR_DLAB;
	uint8_t fifo = s->fcr & UART_FCR_ENABLE_FIFO ? 0xc0 : 0;

	switch (port) {
	case UART_RX:
		return divisor ? s->dll : 0;
	case UART_IER:
		return divisor ? s->dlm : s->ier;
	case UART_IIR:
		if (s->thr_empty_pending && (s->ier & UART_IER_THRI)) {
			s->thr_empty_pending = false;
			return UART_IIR_THRI | fifo;
		}
		return UART_IIR_NO_INT | fifo;
	case UART_LCR:
		return s->lcr;
	case UART_MCR:
		return s->mcr;
	case UART_LSR:
		return UART_LSR_TEMT | UART_LSR_THRE;
	case UART_MSR:
		if (s->mcr & UART_MCR_LOOP) /* how drivers find out whether there is a port */
			return (uint8_t)((s->mcr & UART_MCR_RTS) << 3 |
			                 (s->mcr & UART_MCR_DTR) << 5 |
			                 (s->mcr & (UART_MCR_OUT1 | UART_MCR_OUT2)) << 4);
		return UART_MSR_DCD | UART_MSR_DSR | UART_MSR_CTS;
	case UART_SCR:
		return s->scr;
	}
	return 0xff;
}

void serial_write(struct serial *s, unsigned port, uint8_t value)
{
	bool divisor = s->lcr & UART_LCR_DLAB;

	switch (port) {
	case UART_TX:
		if (divisor) {
			s->dll = value;
			break;
		}
		if (!(s->mcr & UART_MCR_LOOP))
			s->out(s->arg, value);
		s->thr_empty_pending = true;
		update(s);
		break;
	case UART_IER:
		if (divisor) {
			s->dlm = value;
			break;
		}
		if ((value & UART_IER_THRI) && !(s->ier & UART_IER_THRI))
			s->thr_empty_pending = true;
		s->ier = value & 0x0f;
		update(s);
		break;
	case UART_FCR:
		s->fcr = value;
		break;
	case UART_LCR:
		s->lcr = value;
		break;
	case UART_MCR:
		s->mcr = value & 0x1f;
		break;
	case UART_SCR:
		s->scr = value;
		break;
	}
}

struct saved_serial {
	uint8_t ier, lcr, mcr, scr, dll, dlm, fcr, pending;
};

void serial_save(const struct serial *s, struct state_out *o)
{
	struct saved_serial k = {s->ier, s->lcr, s->mcr, s->scr,
	                         s->dll, s->dlm, s->fcr, s->thr_empty_pending};

	state_put(o, STATE_SERIAL, &k, sizeof(k));
}

int serial_load(struct serial *s, struct state_in *i)
{
	struct saved_serial k;
	int r = state_get(i, STATE_SERIAL, &k, sizeof(k));

	if (r < 0)
		return r;
	s->ier = k.ier & 0x0f;
	s->lcr = k.lcr;
	s->mcr = k.mcr & 0x1f;
	s->scr = k.scr;
	s->dll = k.dll;
	s->dlm = k.dlm;
	s->fcr = k.fcr;
	s->thr_empty_pending = k.pending;
	return 0;
}
