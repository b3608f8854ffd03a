package tokenizer

// A merger joins neighbouring symbols of a text, the best pair first and the leftmost of equals, until no pair joins:
// the core of both tokenizers. Its buffers are reused from one text to the next.
type merger struct {
	text  string
	syms  []symbol
	queue queue
}

// A symbol is a stretch of the text; it starts where the one before it ends.
type symbol struct {
	prev, next int32 // neighbours, -1 at the ends
	end        int32 // in the text; dead if the symbol was joined to its left neighbour
	id         int32 // token, -1 if the stretch is not one
}

const dead = -1

// A pairing says what two neighbours make: the token and its rank (less is better). s is the text of both.
type pairing func(s string, left, right int32) (id, rank int32, ok bool)

func (m *merger) reset(text string) {
	m.text = text
	m.syms = m.syms[:0]
	m.queue = m.queue[:0]
}

// add appends a symbol that ends at the given place.
func (m *merger) add(end int, id int32) {
	n := int32(len(m.syms))
	if n > 0 {
		m.syms[n-1].next = n
	}
	m.syms = append(m.syms, symbol{prev: n - 1, next: -1, end: int32(end), id: id})
}

func (m *merger) start(i int32) int32 {
	if p := m.syms[i].prev; p >= 0 {
		return m.syms[p].end
	}
	return 0
}

// run joins what can be joined. The first symbol stays the first.
func (m *merger) run(pair pairing) {
	for i := range m.syms {
		m.propose(pair, int32(i))
	}
	for len(m.queue) > 0 {
		it := m.queue.pop()
		left := int32(uint32(it.key))
		l := &m.syms[left]
		if l.end == dead || l.next < 0 {
			continue
		}
		right := l.next
		r := &m.syms[right]
		// Ends only ever move right, so the pair ends where it did when it was proposed only if neither symbol has changed.
		if r.end != it.end {
			continue
		}
		l.end, l.id, l.next = r.end, it.id, r.next
		r.end = dead
		if l.next >= 0 {
			m.syms[l.next].prev = left
		}
		if l.prev >= 0 {
			m.propose(pair, l.prev)
		}
		m.propose(pair, left)
	}
}

// propose queues the pair of symbol i and its right neighbour if they make a token.
func (m *merger) propose(pair pairing, i int32) {
	l := &m.syms[i]
	if l.next < 0 {
		return
	}
	r := &m.syms[l.next]
	if id, rank, ok := pair(m.text[m.start(i):r.end], l.id, r.id); ok {
		m.queue.push(item{uint64(rank)<<32 | uint64(i), r.end, id})
	}
}

// An item waits in a queue; the least key comes first.
type item struct {
	key uint64
	end int32
	id  int32
}

// A queue is a binary heap.
type queue []item

func (q *queue) push(it item) {
	h := append(*q, it)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].key <= it.key {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = it
	*q = h
}

func (q *queue) pop() item {
	h := *q
	top := h[0]
	n := len(h) - 1
	it := h[n]
	h = h[:n]
	*q = h
	if n == 0 {
		return top
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && h[c+1].key < h[c].key {
			c++
		}
		if it.key <= h[c].key {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = it
	return top
}
