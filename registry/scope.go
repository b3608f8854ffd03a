package registry

import (
	"context"
	"fmt"
	"sync"
)

// scope is what With resolved from a context: it narrows chains, once per snapshot and op.
type scope struct {
	strict   bool
	disabled []entry
	kernels  map[Op]string

	mu    sync.Mutex
	gen   uint64
	cache map[*chain]*chain
}

type scopeKey struct{}

// scopeValue is immutable; each With... adds to a copy.
type scopeValue struct {
	strict   *bool
	disabled []string
	kernels  map[Op]string
}

func (v scopeValue) clone() scopeValue {
	k := make(map[Op]string, len(v.kernels)+1)
	for op, n := range v.kernels {
		k[op] = n
	}
	v.kernels = k
	v.disabled = v.disabled[:len(v.disabled):len(v.disabled)]
	return v
}

func scopeOf(ctx context.Context) scopeValue {
	v, _ := ctx.Value(scopeKey{}).(scopeValue)
	return v
}

// WithStrict returns a context in which a launch fails with ErrStrict instead of falling back: to the next kernel after a
// decline, or to a borrowed CPU kernel. A call outside a kernel's declared domain is no fallback.
// It takes effect through Queue.With; false cannot lift the registry's own strict mode.
func WithStrict(ctx context.Context, strict bool) context.Context {
	v := scopeOf(ctx).clone()
	v.strict = &strict
	return context.WithValue(ctx, scopeKey{}, v)
}

// WithDisabled returns a context in which the kernels named by entries (as in Registry.Disable) are not used, in
// addition to those disabled before. A malformed or unknown entry disables nothing.
func WithDisabled(ctx context.Context, entries ...string) context.Context {
	v := scopeOf(ctx).clone()
	v.disabled = append(v.disabled, entries...)
	return context.WithValue(ctx, scopeKey{}, v)
}

// WithKernel returns a context in which op runs on the named kernel (or a provider's kernels) and on nothing else.
func WithKernel(ctx context.Context, op Op, kernel string) context.Context {
	v := scopeOf(ctx).clone()
	v.kernels[op] = kernel
	return context.WithValue(ctx, scopeKey{}, v)
}

// With returns a view of the same queue with ctx's scopes (WithStrict, WithDisabled, WithKernel) in place of its own.
// They are resolved here, once; no launch reads a context. The view shares the queue's counters and needs no Close.
func (q *Queue) With(ctx context.Context) *Queue {
	v := *q
	v.scope = nil
	sv := scopeOf(ctx)
	sc := &scope{kernels: sv.kernels, strict: sv.strict != nil && *sv.strict}
	for _, text := range sv.disabled {
		if e, err := parseEntry(text); err == nil {
			sc.disabled = append(sc.disabled, e)
		}
	}
	if sc.strict || len(sc.disabled) > 0 || len(sc.kernels) > 0 {
		v.scope = sc
	}
	return &v
}

// chain returns c narrowed to the scope.
func (sc *scope) chain(t *table, c *chain) *chain {
	if len(sc.disabled) == 0 && len(sc.kernels) == 0 {
		return c
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.gen != t.gen {
		sc.gen, sc.cache = t.gen, map[*chain]*chain{}
	}
	if n := sc.cache[c]; n != nil {
		return n
	}
	want, forced := sc.kernels[c.slot.op]
	n := c.derive(func(s *step) (DropReason, string, bool) {
		for i := range sc.disabled {
			if sc.disabled[i].covers(t.ops.names, s.g, c.slot.dev, s.k.borrowed) {
				return DropDisabled, "by scope " + sc.disabled[i].text, false
			}
		}
		if forced && !s.g.is(want) && !(s.k.borrowed && want == ReferenceProviderName) {
			return DropOverridden, fmt.Sprintf("scope wants %s", want), false
		}
		return 0, "", true
	})
	sc.cache[c] = n
	return n
}
