package opmuxtest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/opmuxtest"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/ops/sample"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

func reluRegistry(t *testing.T, kind tensor.Kind) *registry.Registry {
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	require.NoError(t, registerRelu(r, kind))
	return r
}

// TestExample is the example's test.
func TestExample(t *testing.T) {
	opmuxtest.TestKernel(t, reluRegistry(t, tensor.CPU), ops.OpRelu, "mine_relu", opmuxtest.NoAllocations(), opmuxtest.Required())
}

// TestOwnKernels: the project's kernels pass what a kernel of anybody else has to pass.
func TestOwnKernels(t *testing.T) {
	r := reluRegistry(t, tensor.CPU)
	for _, op := range []registry.Op{ops.OpRelu, ops.OpRMSNorm, ops.OpApplyTopKTopP} {
		for _, kernel := range []string{"reference", "portable", "avx2"} {
			name := kernel + "_" + r.OpName(op)
			t.Run(name, func(t *testing.T) {
				opmuxtest.TestKernel(t, r, op, name, opmuxtest.Seed(3), opmuxtest.Threads(1, 2), opmuxtest.Level(sample.Quick))
			})
		}
	}
}

// TestOtherDevice: a kernel of a device that sees host memory is held against the CPU's reference.
func TestOtherDevice(t *testing.T) {
	d := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}, Unified: true})
	r := reluRegistry(t, tensor.XPU)
	require.NoError(t, r.SetDeviceProviderCaps(d.ID(), d.Caps()))
	opmuxtest.TestKernel(t, r, ops.OpRelu, "mine_relu", opmuxtest.On(d, nil), opmuxtest.Required())
}

// recorder is a test that keeps what it was told.
type recorder struct {
	errors, fatals, skips []string
}

func (*recorder) Helper()             {}
func (*recorder) Name() string        { return "TestIt/one" }
func (*recorder) Logf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.fatals = append(r.fatals, fmt.Sprintf(format, args...))
}
func (r *recorder) Skipf(format string, args ...any) {
	r.skips = append(r.skips, fmt.Sprintf(format, args...))
}

// TestWhatCannotBeTested is said in words, and is never a pass.
func TestWhatCannotBeTested(t *testing.T) {
	of := func(r *registry.Registry, op registry.Op, kernel string, o ...opmuxtest.Option) *recorder {
		rec := &recorder{}
		opmuxtest.TestKernel(rec, r, op, kernel, o...)
		return rec
	}
	r := reluRegistry(t, tensor.CPU)
	require.Contains(t, of(r, 9999, "x").fatals[0], "op 9999 is not known")
	require.Contains(t, of(r, ops.OpRelu, "nobody").fatals[0], `no kernel "nobody", it has mine_relu, `)

	bare := registry.New(registry.Options{})
	require.NoError(t, registerRelu(bare, tensor.CPU))
	require.Contains(t, of(bare, ops.OpRelu, "mine_relu").errors[0], "no reference kernel")

	_, err := ops.Register(r, ops.Relu, tensor.CPU, ops.Provider[ops.ReluArgs]{Fn: relu, OpProvider: registry.OpProvider{Name: "elsewhere",
		Supports: func(device.ProviderCaps) registry.Verdict { return registry.No("needs wings") }}})
	require.NoError(t, err)
	rec := of(r, ops.OpRelu, "elsewhere_relu")
	require.Contains(t, rec.skips[0], "needs wings")
	require.Empty(t, rec.fatals)
	require.Contains(t, of(r, ops.OpRelu, "elsewhere_relu", opmuxtest.Required()).fatals[0], "needs wings")

	t.Setenv(opmuxtest.CaseVariable, "no such case")
	require.Contains(t, of(r, ops.OpRelu, "mine_relu").fatals[0], `case "no such case"`)
}

// TestMayDecline: declines that the description does not explain are errors unless the test admits them.
func TestMayDecline(t *testing.T) {
	r := reluRegistry(t, tensor.CPU)
	_, err := ops.Register(r, ops.Relu, tensor.CPU, ops.Provider[ops.ReluArgs]{OpProvider: registry.OpProvider{Name: "picky",
		Spec:   &registry.Spec{Signatures: []tensor.FormatSignature{tensor.Sig(map[string]tensor.Format{"x": tensor.Dense(tensor.F32)})}},
		Accept: &registry.Accept{Operands: map[string]registry.AcceptOperand{"out": {DTypes: []tensor.DType{tensor.F32}}}}},
		Fn: func(q *registry.Queue, a *ops.ReluArgs) registry.Status {
			if a.X.Numel() > 1000 {
				return registry.Decline(registry.ReasonThreshold)
			}
			return relu(q, a)
		}})
	require.NoError(t, err)
	rec := &recorder{}
	opmuxtest.TestKernel(rec, r, ops.OpRelu, "picky_relu")
	require.Len(t, rec.errors, 1)
	require.Contains(t, rec.errors[0], "unexplained decline")
	require.Contains(t, rec.errors[0], "size-threshold")
	require.Contains(t, rec.errors[0], "go test -run '^TestIt$/^one$' .")
	rec = &recorder{}
	opmuxtest.TestKernel(rec, r, ops.OpRelu, "picky_relu", opmuxtest.MayDecline(registry.ReasonThreshold))
	require.Empty(t, rec.errors)
}
