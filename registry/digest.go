package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/opmux/opmux/tensor"
)

// digested is the digest of one snapshot.
type digested struct {
	t    *table
	text string
}

// Digest is a short name for everything in the registry that decides selections: kernels with their descriptions,
// schemas, oracles, overrides, rules, disabled and quarantined kernels. Processes with equal digests answer equal requests
// for equal platforms alike, on whatever machine they run.
func (r *Registry) Digest() string {
	t, err := r.snapshot()
	if err != nil {
		return ""
	}
	return r.digest(t)
}

func (r *Registry) digest(t *table) string {
	if d := r.digests.Load(); d != nil && d.t == t {
		return d.text
	}
	d := &digested{t, t.digest()}
	r.digests.Store(d)
	return d.text
}

func (t *table) digest() string {
	var lines []string // in no order of their own: ids of ops differ between processes
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for op, d := range t.ops.byID {
		used := false
		for g := range t.registered(Op(op)) {
			used = true
			line("kernel of %s on %v %x", d.Name, g.kind, g.print())
		}
		if used {
			line("op %s %x", d.Name, t.ops.schemaPrint(Op(op)))
		}
	}
	for text := range t.disabled {
		line("disabled %s", text)
	}
	for dn := range t.devs {
		for _, c := range t.devs[dn].ops {
			for i := 0; c != nil && i < len(c.dropped); i++ {
				if d := &c.dropped[i]; d.why == DropQuarantined {
					line("quarantined %s on %v", d.g.p.Kernel, c.slot.dev)
				}
			}
		}
	}
	if t.quarantine != nil {
		for i := range t.quarantine.entries {
			line("quarantine %s", t.quarantine.entries[i].key())
		}
		for i := range t.quarantine.lifts {
			line("lift %s", t.quarantine.lifts[i].key())
		}
	}
	slices.Sort(lines)
	h := sha256.New()
	for _, l := range lines {
		fmt.Fprintln(h, l)
	}
	for _, o := range t.oracles {
		fmt.Fprintf(h, "oracle %d %s\n", o.Rank, o.Name)
	}
	fmt.Fprintf(h, "strict %v\n", t.opts.Strict)
	t.choices.digest(h)
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func (s *choices) digest(w io.Writer) {
	if s == nil {
		return
	}
	for _, n := range s.force {
		fmt.Fprintf(w, "force %s=%v\n", n.op, n.target)
	}
	for _, n := range s.override {
		fmt.Fprintf(w, "override %s=%v\n", n.op, n.target)
	}
	if c := s.config; c != nil {
		fmt.Fprintf(w, "config objective %v strict %v\n", c.objective, c.strict)
		for i := range c.rules {
			fmt.Fprintf(w, "rule %v\n", c.rules[i].rule)
		}
	}
}

// key is what the entry is about, wherever it is written.
func (e *quarantineEntry) key() string {
	return fmt.Sprint(e.target, e.op, e.vendor, e.name, e.arch, e.driver)
}

// registered lists the kernels of an op: by kind, in chain order.
func (t *table) registered(op Op) func(yield func(*Registration) bool) {
	return func(yield func(*Registration) bool) {
		for kind := range tensor.NumKinds {
			c := t.chain(op, tensor.Device{Kind: tensor.Kind(kind)})
			if c == nil {
				continue
			}
			for _, g := range c.all {
				if !yield(g) {
					return
				}
			}
		}
	}
}

// described is the registration's description, made once and shared: nobody may change it.
func (g *Registration) described() *KernelSpec {
	g.describe.Do(func() {
		g.spec = g.KernelSpec()
		k := g.spec
		k.Source, k.Unavailable, k.Doc = "", "", "" // what differs between builds, or does not matter
		b, _ := json.Marshal(&k)                    // plain data
		g.sum = sha256.Sum256(fmt.Appendf(b, " implemented %v restricted %v", g.p.Fn != nil, g.p.Supports != nil || g.p.Accept != nil))
	})
	return &g.spec
}

// print is a digest of what the kernel is, wherever it was registered.
func (g *Registration) print() []byte {
	g.described()
	return g.sum[:8]
}

// schemaPrint is a digest of an op's roles and traits.
func (s *opSet) schemaPrint(op Op) []byte {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	b := s.index.prints[op]
	if b == nil {
		schema := s.byID[op].schema()
		text, _ := json.Marshal([]any{schema.Roles, schema.Traits}) // plain data
		sum := sha256.Sum256(text)
		b = sum[:8]
		if s.index.prints == nil {
			s.index.prints = map[Op][]byte{}
		}
		s.index.prints[op] = b
	}
	return b
}
