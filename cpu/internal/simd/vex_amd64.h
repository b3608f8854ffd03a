// VPDPBUSD on 256-bit registers, given by their numbers, in the VEX encoding of
// AVX-VNNI: the assembler knows only the EVEX encoding, which CPUs without
// AVX-512 do not have. a += s·u, four signed bytes of s with unsigned ones of u
// in each word.
#define VPDPBUSD_VEX(s, u, a) \
	BYTE $0xc4; \
	BYTE $(0xe2 ^ (((a)>>3)<<7) ^ (((s)>>3)<<5)); \
	BYTE $(0x05 | ((15^(u))<<3)); \
	BYTE $0x50; \
	BYTE $(0xc0 | (((a)&7)<<3) | ((s)&7))
