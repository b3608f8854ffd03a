package registry

import (
	"testing"
	"unsafe"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// Strict mode comes and goes while the registry runs, over what its options said.
func TestSetStrict(t *testing.T) {
	r, op := probe(t, Options{Strict: true})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3, Fn: declines(ReasonShape)})
	native(t, r, op, tensor.CPU)
	q := r.NewQueue(nil)
	require.NoError(t, r.SetStrict(false), "before the first compile")
	require.False(t, r.Strict())
	require.Equal(t, NativeProviderName, launched(t, q, op))
	require.NoError(t, r.SetStrict(true))
	require.True(t, r.Strict())
	require.ErrorIs(t, q.Launch(op, unsafe.Pointer(&probeArgs{})), ErrStrict)
}

func TestDisabledList(t *testing.T) {
	r, op := probe(t, Options{Disable: []string{"zz"}})
	native(t, r, op, tensor.CPU)
	restore, err := r.Disable("vt-native@probe")
	require.NoError(t, err)
	require.Equal(t, []string{"vt-native@probe", "zz"}, r.Disabled())
	restore()
	require.Equal(t, []string{"zz"}, r.Disabled())
}
