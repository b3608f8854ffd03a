//go:build !race

package recipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/recipe"
	"github.com/opmux/opmux/registry"
)

// TestRunAllocatesNothing: neither choosing nor running costs an allocation.
func TestRunAllocatesNothing(t *testing.T) {
	best, q := queue(t)
	for _, name := range recipe.Catalogue().Names() {
		p := get(t, name)
		x, _, params := operands(name, bf16)
		for _, q := range []*registry.Queue{best, q} {
			require.NoError(t, p.Run(q, x, params))
			require.Zero(t, testing.AllocsPerRun(20, func() { _ = p.Run(q, x, params) }), name)
			require.NoError(t, p.RunTier(q, recipe.Composite, x, params))
			require.Zero(t, testing.AllocsPerRun(20, func() { _ = p.RunTier(q, recipe.Composite, x, params) }), name)
		}
	}
}
