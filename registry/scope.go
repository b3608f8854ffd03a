package registry

import (
	"context"
	"maps"
	"sync"
)

// scope is what With resolved from a context: it narrows chains, once per snapshot and op.
type scope struct {
	strict    bool
	disabled  []entry
	overrides map[Op]choice
	required  []entry

	mu    sync.Mutex
	gen   uint64
	cache map[*chain]*chain

	checked *table // with which required was checked last
	absent  error
}

type scopeKey struct{}

// scopeValue is immutable; each With... adds to a copy.
type scopeValue struct {
	strict    *bool
	disabled  []string
	overrides map[Op]choice
	required  []string
}

func (v scopeValue) clone() scopeValue {
	o := make(map[Op]choice, len(v.overrides)+1)
	maps.Copy(o, v.overrides)
	v.overrides = o
	v.disabled = v.disabled[:len(v.disabled):len(v.disabled)]
	v.required = v.required[:len(v.required):len(v.required)]
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

// WithRequired returns a context in which nothing is launched unless every name, as in Registry.Require, is usable on the
// queue's device: a launch fails with the *RequireError. A malformed name is never usable.
func WithRequired(ctx context.Context, names ...string) context.Context {
	v := scopeOf(ctx).clone()
	v.required = append(v.required, names...)
	return context.WithValue(ctx, scopeKey{}, v)
}

// WithKernel returns a context in which op runs on the named kernel (or a provider's kernels) and on nothing else. The
// name may be written as ParseTarget reads it. Only OPMUX_FORCE is stronger.
func WithKernel(ctx context.Context, op Op, kernel string) context.Context {
	t, err := ParseTarget(kernel)
	if err != nil {
		t = Target{Name: kernel} // matches nothing, and the launch says so
	}
	return withChoice(ctx, op, t, true)
}

// WithOverride returns a context in which the target's kernels head op's chain, or, for a target that excludes, are not
// in it. A target that names nothing usable on the queue's device leaves the chain empty: the launch fails with a
// *NoProviderError that says why. It takes effect through Queue.With, and only OPMUX_FORCE is stronger.
func WithOverride(ctx context.Context, op Op, t Target) context.Context {
	return withChoice(ctx, op, t, false)
}

func withChoice(ctx context.Context, op Op, t Target, only bool) context.Context {
	v := scopeOf(ctx).clone()
	v.overrides[op] = choice{target: t, from: fromContext, only: only}.settled()
	return context.WithValue(ctx, scopeKey{}, v)
}

// With returns a view of the same queue with ctx's scopes (WithStrict, WithDisabled, WithKernel, WithOverride,
// WithRequired) in place of its own.
// They are resolved here, once; no launch reads a context. The view shares the queue's counters and needs no Close.
func (q *Queue) With(ctx context.Context) *Queue {
	v := *q
	v.scope = nil
	sv := scopeOf(ctx)
	sc := &scope{overrides: sv.overrides, strict: sv.strict != nil && *sv.strict}
	for _, text := range sv.disabled {
		if e, err := parseEntry(text); err == nil {
			sc.disabled = append(sc.disabled, e)
		}
	}
	for _, text := range sv.required {
		e, err := parseEntry(text)
		if err != nil {
			e = entry{text: text} // no kernel has an empty name
		}
		sc.required = append(sc.required, e)
	}
	if sc.strict || len(sc.required) > 0 || len(sc.disabled) > 0 || len(sc.overrides) > 0 {
		v.scope = sc
	}
	return &v
}

// chain returns c narrowed to the scope.
func (sc *scope) chain(t *table, c *chain) *chain {
	if len(sc.disabled) == 0 && len(sc.overrides) == 0 {
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
	n := c
	if ch, ok := sc.overrides[c.slot.op]; ok && (c.choice.from != fromForce || ch.from == fromTest) {
		if c.base != nil {
			n = c.base
		}
		n = n.overridden(ch.over(c.choice))
	}
	n = n.derive(func(s *step) (DropReason, string, bool) {
		for i := range sc.disabled {
			if sc.disabled[i].covers(t.ops, s.g, c.slot.dev, s.k.borrowed) {
				return DropDisabled, "by scope " + sc.disabled[i].text, false
			}
		}
		return 0, "", true
	})
	sc.cache[c] = n
	return n
}

// choice is what the scope says of op.
func (sc *scope) choice(op Op) choice {
	if sc == nil {
		return choice{}
	}
	return sc.overrides[op]
}
