package sample

import (
	"errors"
	"fmt"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
)

// SelfTest returns a known-answer test for registry.OpProvider.SelfTest: each case is launched on the queue it is given and run
// by reference, a launcher that is known to be right, and what both wrote must agree within ToleranceFor, or to the bit
// if exact is set. It fails for a kernel that declines all cases, writes outside of its operands or into its inputs.
func SelfTest(d registry.Descriptor, reference registry.Launcher, exact bool, cases ...Case) func(q *registry.Queue) error {
	return func(q *registry.Queue) error {
		ran := 0
		var declined error
		for _, c := range cases {
			c.Device = q.Device()
			want, err := Of(d, c)
			if err != nil {
				return err
			}
			got := want.Clone()
			if err := ops.Launch(q, d.Op, got.Record()); errors.Is(err, registry.ErrDeclined) {
				declined = err
				continue
			} else if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			ran++
			if s := reference(q, want.Record()); s.Code() != registry.OK {
				return fmt.Errorf("%s: reference: %v", c.Name, s)
			}
			tol := ToleranceFor(want)
			if exact {
				tol = Bits
			}
			for _, r := range Compare(got, want, tol) {
				if !r.OK {
					return fmt.Errorf("%s: %v", c.Name, r)
				}
			}
			if err := got.CheckGuards(); err != nil {
				return err
			}
			if err := got.InputsUntouched(); err != nil {
				return err
			}
		}
		if ran == 0 {
			return declined
		}
		return nil
	}
}
