package debug_test

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/gguf"
	"github.com/opmux/opmux/llm"
	"github.com/opmux/opmux/ops"
	"github.com/opmux/opmux/registry"
	"github.com/opmux/opmux/tensor"
)

// hostile is what a text from outside may hold.
const hostile = `<script>document.title="owned"</script><img src=x onerror=alert(1)>"'&`

// load is a program at work: a registry with the CPU's kernels and some that misbehave, and a model that runs on it.
type load struct {
	reg     *registry.Registry
	devices *device.Table
	lost    *devicetest.Device // xpu:0
	engine  *llm.Engine
}

// newLoad registers beside the CPU's kernels, best first: "picky", which leaves every rms_norm to the next kernel for its
// alignment; "liar" of silu_and_mul, whose self-test fails; and "absent" of add, whose predicate refuses the device. The
// texts of the last two are hostile.
func newLoad(t testing.TB) *load {
	l := &load{reg: registry.New(registry.Options{Disable: []string{"reference@add"}}), devices: &device.Table{}}
	require.NoError(t, cpu.Register(l.reg))
	register := func(op registry.Op, p registry.OpProvider) {
		p.Priority = 200
		_, err := l.reg.RegisterOpProvider(op, tensor.CPU, p)
		require.NoError(t, err)
	}
	decline := func(*registry.Queue, unsafe.Pointer) registry.Status {
		return registry.Decline(registry.ReasonAlignment)
	}
	register(ops.RMSNorm.ID(), registry.OpProvider{Name: "picky", Fn: decline, Doc: hostile})
	register(ops.SiluAndMul.ID(), registry.OpProvider{Name: "liar", Fn: decline, SelfTest: func(*registry.Queue) error { return errors.New(hostile) }})
	register(ops.Add.ID(), registry.OpProvider{Name: "absent", Fn: decline, Supports: func(device.ProviderCaps) registry.Verdict { return registry.No(hostile) }})
	dev, err := cpu.Open(cpu.Options{Threads: 2, Registry: l.reg})
	require.NoError(t, err)
	require.NoError(t, l.devices.Add(dev))
	l.lost = devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}})
	require.NoError(t, l.devices.Add(l.lost))
	caps := l.lost.Caps()
	caps.Libraries = []device.Library{{Name: "libfake.so", Path: "/opt/fake/libfake.so.2", Version: "2.1"},
		{Name: "libother.so", Err: "/opt/fake/libother.so: no such file; libother.so: " + hostile}}
	require.NoError(t, l.reg.SetDeviceProviderCaps(l.lost.ID(), caps))
	raw, err := os.ReadFile("../cmd/opmux/model/default.gguf")
	require.NoError(t, err)
	f, err := gguf.Parse(raw)
	require.NoError(t, err)
	m, err := llm.Load(t.Context(), f, dev, llm.Options{Registry: l.reg, ContextLength: 256})
	require.NoError(t, err)
	l.engine, err = m.NewEngine()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.engine.Close())
		require.NoError(t, m.Close())
		require.NoError(t, dev.Close())
	})
	return l
}

// generate runs the model for n tokens.
func (l *load) generate(t testing.TB, n int) {
	_, err := l.engine.Generate(t.Context(), llm.Request{Prompt: []int32{1, 300, 301}, MaxTokens: n, IgnoreEnd: true})
	require.NoError(t, err)
}
