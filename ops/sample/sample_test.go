package sample_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
)

// TestW30EveryOpHasCases: every op of the catalogue has a corpus, every case of it makes a record that the op's
// validator admits, every dtype that an operand admits and every optional operand occurs.
func TestW30EveryOpHasCases(t *testing.T) {
	require.NotNil(t, ops.Softmax)
	require.NotEmpty(t, registry.Descriptors())
	for _, d := range registry.Descriptors() {
		for _, level := range []sample.Level{sample.Quick, sample.Full} {
			names, present, elements := map[string]bool{}, map[string]bool{}, 0
			for _, c := range sample.Corpus(d.Op, level) {
				a, err := sample.New(c)
				require.NoError(t, err, "%s %s", d.Name, c.Name)
				require.False(t, names[c.Name], "%s has two cases %s", d.Name, c.Name)
				names[c.Name] = true
				for _, o := range d.Operands {
					if x := a.Tensor(o.Name); x.Present() {
						present[o.Name] = true
						elements += int(x.Numel())
					}
				}
				require.NoError(t, a.CheckGuards())
				require.NoError(t, a.Untouched())
			}
			require.Greater(t, len(names), 8, d.Name)
			require.NotZero(t, elements, d.Name)
			for _, o := range d.Operands {
				require.True(t, present[o.Name], "%s: no case has %s", d.Name, o.Name)
			}
			t.Logf("%s %v: %d cases", d.Name, level, len(names))
		}
	}
}
