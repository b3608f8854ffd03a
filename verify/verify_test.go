package verify_test

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/verify"
)

// open returns options for the CPU with 2 threads, and with 1 beside it, in a registry of their own.
func open(t *testing.T) verify.Options {
	t.Helper()
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	d := openThreads(t, r, 2)
	return verify.Options{Registry: r, Device: d, More: map[int]device.Device{1: openThreads(t, r, 1)}, Seed: 1}
}

func openThreads(t *testing.T, r *registry.Registry, n int) device.Device {
	d, err := cpu.Open(cpu.Options{Threads: n, Registry: r})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// TestCPUKernels verifies every kernel that this machine runs, on the quick level, which executes some call of every
// signature already. The full level is cpu.TestImplementations'.
func TestCPUKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("cpu.TestImplementations does the same")
	}
	o := open(t)
	rep, err := verify.Run(context.Background(), o)
	require.NoError(t, err)
	if !rep.OK || testing.Verbose() {
		require.NoError(t, rep.WriteText(os.Stdout))
	}
	require.True(t, rep.OK)
	signatures := 0
	for _, k := range rep.Kernels {
		require.Empty(t, k.Unverified, k.Kernel)
		signatures += k.Signatures
	}
	require.Greater(t, signatures, 100)
}

// TestInterrupted: a run that is ended reports the kernels that it finished, and does not say that all is well.
func TestInterrupted(t *testing.T) {
	o := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var begun []string
	o.Op = "relu"
	o.Progress = func(kernel string) {
		if begun = append(begun, kernel); len(begun) == 2 {
			cancel()
		}
	}
	rep, err := verify.Run(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, rep.Interrupted)
	require.False(t, rep.OK)
	require.Len(t, rep.Kernels, 1)
	require.Equal(t, begun[0], rep.Kernels[0].Kernel)
	require.Equal(t, verify.Passed, rep.Kernels[0].Verdict)
	var b bytes.Buffer
	require.NoError(t, rep.WriteText(&b))
	require.Contains(t, b.String(), "INTERRUPTED before the last kernel: 1 ops, 1 kernels")
}

// TestKernelsByProvider: the pattern of kernels fits providers too, and what fits nothing is said in words.
func TestKernelsByProvider(t *testing.T) {
	o := open(t)
	o.Op, o.Kernel = "relu", "portab*"
	byName, err := verify.Run(t.Context(), o)
	require.NoError(t, err)
	o.Kernel = "portable"
	byProvider, err := verify.Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, byName, byProvider)
	o.Kernel = "cublas"
	_, err = verify.Run(t.Context(), o)
	require.ErrorIs(t, err, verify.ErrNothing)
	require.EqualError(t, err, `verify: no kernel matches: op "relu", kernel "cublas"`)
}
