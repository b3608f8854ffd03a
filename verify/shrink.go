package verify

import (
	"maps"
	"slices"

	"github.com/opmux/opmux/ops/sample"
)

// mostTries bounds the calls that one search makes.
const mostTries = 200

// shrink looks for smaller extents at which the kernel still differs from the reference: each symbol in turn is halved
// while that fails, then lowered by one, until no symbol can be lowered. Cases whose values are given keep their extents.
func (k *kernel) shrink(c *call, tol sample.Tolerance) *Shrunk {
	if len(c.Values) > 0 {
		return nil
	}
	s := &Shrunk{Shape: maps.Clone(c.want.Shape())}
	q := k.v.reference(k.d, k.v.referenceName)
	fails := func(shape sample.Shape) (string, bool) {
		s.Tries++
		n := c.Case
		n.Shape, n.Want = shape, nil
		want, err := sample.Of(k.d, n)
		if err != nil {
			return "", false
		}
		got := want.Clone().On(k.v.Device.ID())
		if launch(q, k.d.Op, want) != nil || launch(k.views[0], k.d.Op, got) != nil {
			return "", false
		}
		bad := worst(sample.Compare(got, want, tol))
		if bad == nil {
			return "", false
		}
		return bad.String(), true
	}
	// Symbols that follow from others are left to the recipe.
	shape := sample.Shape{}
	for _, name := range sample.FreeSymbols(k.d) {
		shape[name] = s.Shape[name]
	}
	detail, ok := fails(shape)
	if !ok {
		return nil // it depends on more than the extents
	}
	s.Shape, s.Detail = shape, detail
	for lowered := true; lowered && s.Tries < mostTries; {
		lowered = false
		for _, name := range slices.Sorted(maps.Keys(s.Shape)) {
			for n := s.Shape[name]; n > 0 && s.Tries < mostTries; n = s.Shape[name] {
				done := true
				for _, less := range []int64{n / 2, n - 1} {
					try := maps.Clone(s.Shape)
					try[name] = less
					if detail, ok := fails(try); ok {
						s.Shape, s.Detail, lowered, done = try, detail, true, false
						break
					}
				}
				if done {
					break
				}
			}
		}
	}
	return s
}
