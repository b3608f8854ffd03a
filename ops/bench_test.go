package ops

import (
	"testing"

	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// BenchmarkEntry measures the ways into a kernel that does nothing: what validation and dispatch cost.
func BenchmarkEntry(b *testing.B) {
	r := registry.New(registry.Options{})
	if _, err := Register(r, RMSNorm, tensor.CPU, Provider[RMSNormArgs]{registry.OpProvider{Name: "nop"},
		func(*registry.Queue, *RMSNormArgs) registry.Status { return 0 }}); err != nil {
		b.Fatal(err)
	}
	q := r.NewQueue(nil)
	defer q.Close()
	a := &RMSNormArgs{Out: ten(f32, 2, 8), X: ten(f32, 2, 8), Weight: ten(f32, 8), Eps: 1e-6}
	bound, err := RMSNorm.Bind(q)
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name string
		run  func() error
	}{
		{"Validate", func() error { return RMSNorm.Validate(a, cpu0) }},
		{"Call", func() error {
			return RMSNorm.Call(q, RMSNormArgs{Out: a.Out, X: a.X, Weight: a.Weight, Eps: 1e-6})
		}},
		{"Launch", func() error { return RMSNorm.Launch(q, a) }},
		{"Bound", func() error { return bound.Launch(a) }},
		{"LaunchValidated", func() error { return bound.LaunchValidated(a) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := way.run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
