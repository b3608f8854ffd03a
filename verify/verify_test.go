package verify_test

import (
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
