/*
 * Guests of a few instructions, for test_vmm.py: entered in 64-bit mode like a Linux, with the first GiB
 * mapped. One of COUNTER, FAULT, EVENT, LIAR is defined.
 */
	.code64
	.globl _start
	.set SERIAL, 0x3f8
	.set DEVICES, 0xd0000000
	.set HOST, 0xd0010000

_start:
#ifdef COUNTER
	/* Counts in memory, writes to 4096 pages in turn, and prints every 16384th number in letters. */
	movl $0x2000000, %ebx
count:	incq (%rbx)
	movq (%rbx), %rax
	movl %eax, %ecx
	andl $0xfff, %ecx
	shll $12, %ecx
	movq %rax, 0x2100000(%rcx)
	testl $0x3fff, %eax
	jnz count
	movl $28, %ecx
	movw $SERIAL, %dx
letter:	movq (%rbx), %rax
	shrq $14, %rax
	shrq %cl, %rax
	andl $15, %eax
	addl $'a', %eax
	outb %al, %dx
	subl $4, %ecx
	jns letter
	movb $'\n', %al
	outb %al, %dx
	jmp count
#endif

#ifdef FAULT
	ud2 /* no IDT: a triple fault */
#endif

/* Devices lie above the first GiB: a page table entry of 1 GiB for the last one below 4 GiB. */
.macro map_devices
	movl $0xa000, %ebx
	movl $0xc0000083, %eax
	movq %rax, 24(%rbx)
.endm

#ifdef EVENT
	map_devices
	movl $HOST, %ebx
	movl $EVENT, 8(%rbx)
	hlt
#endif

#ifdef LIAR
	/* Anything to any register of any device and to the rings it may have named, then power off. */
	map_devices
	movl $12345, %esi
	movl $LIAR, %edi
again:	imull $1103515245, %esi, %esi
	addl $12345, %esi
	movl %esi, %eax
	shrl $8, %eax
	movl %eax, %ebx
	andl $0xf1fc, %ebx /* 16 devices, the first 0x200 bytes of each */
	addl $DEVICES, %ebx
	movl %esi, %ecx
	shrl $4, %ecx
	andl $0xff, %ecx
	testl $0x10000, %esi
	jz small
	movl %esi, %ecx
	andl $0x3fffff0, %ecx /* an address in memory, maybe aligned */
small:	movl %ecx, (%rbx)
	movl (%rbx), %edx
	movw %cx, 2(%rbx)
	movl %esi, %eax
	andl $0x3ffffc, %eax
	movl %esi, 0x2000000(%rax)
	decl %edi
	jnz again
	movl $HOST, %ebx
	movl $1, 8(%rbx)
	hlt
#endif
