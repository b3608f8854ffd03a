package sample

// The generator is a pure function of a key and a counter, so that any element can be made alone, in any order and on
// any device, by integer operations and one multiplication.

// mix is the finalizer of SplitMix64: a bijection whose outputs pass for random.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// stream is a sequence of random numbers with random access.
type stream uint64

// textKey starts a stream from a name and a seed.
func textKey(name string, seed uint64) stream {
	h := mix(seed + 0x9e3779b97f4a7c15)
	for _, c := range []byte(name) {
		h = mix(h + uint64(c) + 1)
	}
	return stream(h)
}

// of returns a stream of its own for a part of what s is for.
func (s stream) of(name string) stream { return textKey(name, uint64(s)) }

// bits returns number i.
func (s stream) bits(i int) uint64 { return mix(uint64(s) + uint64(i)*0x9e3779b97f4a7c15) }

// below returns number i as an integer in [0,n), n > 0.
func (s stream) below(i int, n int64) int64 { return int64(s.bits(i) >> 1 % uint64(n)) }

// uniform returns number i in [0,1), a multiple of 2^-24.
func (s stream) uniform(i int) float64 { return float64(s.bits(i)>>40) / (1 << 24) }

// normal returns number i, about normally distributed with variance 1: the sum of four uniform numbers of 16 bits,
// which is exact, so that every machine gets the same bits.
func (s stream) normal(i int) float64 {
	b := s.bits(i)
	sum := int64(b&0xffff) + int64(b>>16&0xffff) + int64(b>>32&0xffff) + int64(b>>48)
	const deviation = 37837 // of the sum: 2^16·sqrt(4/12)
	return float64(float32(sum-2*0xffff) / deviation)
}
