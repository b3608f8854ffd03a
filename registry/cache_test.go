package registry

import (
	"sync"
	"testing"

	"github.com/opmux/opmux/device"
	"github.com/stretchr/testify/require"
)

// One answer serves many: whoever gets it may read its record while the one who searched is told of it. Run it under the
// race detector.
func TestKeptAnswersAreShared(t *testing.T) {
	r, _ := mm(t, Options{Observer: &recorder{}})
	register(t, r, kernel(t, "k", nil))
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			for k := range int64(300) {
				if ok, d := r.Supports(Request{Operator: "mm", Traits: ints(1, k)}); !ok || d.Winner != "" || d.Choices[0].Kernel != "k" {
					t.Error(d)
				}
			}
		})
	}
	askers.Wait()
	require.Equal(t, CacheStats{Hits: 900, Misses: 300, Size: 300}, r.CacheStats())
}

// A request that says nothing of its calls asks what the op has. One that gives only what the schema takes for granted
// is another question.
func TestOpenRequestsHaveAnswersOfTheirOwn(t *testing.T) {
	open, stated := Request{Operator: "op"}, Request{Operator: "op", Traits: map[string]TraitValue{"layout": StringTrait("nk")}}
	for _, first := range []Request{open, stated} {
		r := New(Options{})
		op, err := r.Define(Descriptor{Name: "op", Record: typeOf[mmArgs](), Traits: []TraitDef{
			{Name: "k", Type: TraitInt}, {Name: "layout", Type: TraitString, Default: StringTrait("nk")}}})
		require.NoError(t, err)
		_, err = r.RegisterOpProvider(op, 0, OpProvider{Name: "p", Kernel: "k", Fn: ranMM("k"), Spec: &Spec{Constraints: map[string]Constraint{"k": MultipleOf(8)}}})
		require.NoError(t, err)
		_, _ = r.Select(first)
		require.Equal(t, "k", winner(t, r, open))
		_, err = r.Select(stated)
		require.ErrorIs(t, err, ErrNoKernel)
	}
}

// Whoever gets a record may change it; the registry's own description of the device stays.
func TestRecordsHoldCopies(t *testing.T) {
	r, _ := mm(t, Options{})
	register(t, r, kernel(t, "k", nil))
	p := &device.Platform{Vendor: device.CPUVendor, Name: "c", Features: []string{"isa:avx2"}}
	require.NoError(t, r.SetDeviceProviderCaps(cpu0, device.ProviderCaps{State: device.Probed, Platform: p}))
	req := Request{Operator: "mm", Traits: ints(1, 1)}
	r.Decide(req).Platform.Features[0] = "isa:spoilt"
	require.Equal(t, []string{"isa:avx2"}, r.Decide(req).Platform.Features)
}
