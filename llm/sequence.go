package llm

import "fmt"

// BlockSize is the number of positions in one block of the paged KV cache.
const BlockSize = 32

// blocks returns how many blocks n positions take.
func blocks(n int) int { return (n + BlockSize - 1) / BlockSize }

// Sequence is one text in an engine's KV cache. It belongs to its engine and is used by the same goroutine.
type Sequence struct {
	e      *Engine
	blocks []int32
	len    int
	closed bool
}

// NewSequence returns an empty sequence. It takes cache blocks as it grows.
func (e *Engine) NewSequence() *Sequence {
	return &Sequence{e: e, blocks: make([]int32, 0, blocks(e.m.opts.ContextLength))}
}

// Len is the number of positions that the cache holds.
func (s *Sequence) Len() int { return s.len }

// Truncate forgets all positions from n on; n beyond the end changes nothing.
func (s *Sequence) Truncate(n int) {
	s.len = min(s.len, max(n, 0))
	for keep := blocks(s.len); len(s.blocks) > keep; {
		last := len(s.blocks) - 1
		s.e.free = append(s.e.free, s.blocks[last])
		s.blocks = s.blocks[:last]
	}
}

// Close gives the sequence's blocks back. Closing twice is harmless; Forward refuses a closed sequence.
func (s *Sequence) Close() error {
	s.Truncate(0)
	s.closed = true
	return nil
}

// grow takes blocks for n more positions (ErrContextFull).
func (s *Sequence) grow(n int) error {
	want := s.len + n
	if want > s.e.m.opts.ContextLength {
		return fmt.Errorf("llm: %d tokens after %d do not fit in a context of %d: %w", n, s.len, s.e.m.opts.ContextLength, ErrContextFull)
	}
	for len(s.blocks) < blocks(want) {
		last := len(s.e.free) - 1
		if last < 0 {
			return fmt.Errorf("llm: every block of the KV cache is taken: %w", ErrContextFull)
		}
		s.blocks = append(s.blocks, s.e.free[last])
		s.e.free = s.e.free[:last]
	}
	return nil
}

// slot is the cache slot of position p.
func (s *Sequence) slot(p int) int64 {
	return int64(s.blocks[p/BlockSize])*BlockSize + int64(p%BlockSize)
}
