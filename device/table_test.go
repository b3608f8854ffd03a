package device_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

type backend struct{ kind tensor.Kind }

func (b backend) Kind() tensor.Kind               { return b.kind }
func (b backend) Devices() ([]device.Info, error) { return nil, nil }
func (b backend) Open(index int32) (device.Device, error) {
	if index > 0 {
		return nil, device.ErrUnavailable
	}
	return closing{devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: b.kind, Index: index}})}, nil
}

var errClosing = errors.New("closing")

type closing struct{ *devicetest.Device }

func (closing) Close() error { return errClosing }

func TestTable(t *testing.T) {
	var tab device.Table
	x0 := tensor.Device{Kind: tensor.XPU}
	_, err := tab.Open(x0)
	require.ErrorIs(t, err, device.ErrUnavailable)
	require.NoError(t, tab.Register(backend{tensor.XPU}))
	require.ErrorIs(t, tab.Register(backend{tensor.XPU}), device.ErrRegistered)
	require.ErrorIs(t, tab.Register(backend{99}), device.ErrUnavailable)
	require.NoError(t, tab.Register(backend{tensor.CPU}))
	require.Len(t, tab.Backends(), 2)
	require.Equal(t, tensor.CPU, tab.Backends()[0].Kind())
	require.Nil(t, tab.Backend(tensor.Metal))

	d, err := tab.Open(x0)
	require.NoError(t, err)
	again, err := tab.Open(x0)
	require.NoError(t, err)
	require.Equal(t, d, again, "one device of each identity")
	_, err = tab.Open(tensor.Device{Kind: tensor.XPU, Index: 1})
	require.ErrorIs(t, err, device.ErrUnavailable)
	require.ErrorIs(t, tab.Add(d), device.ErrRegistered)
	require.NoError(t, tab.Add(devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.CPU, Index: 2}})))
	require.Equal(t, tensor.CPU, tab.Devices()[0].ID().Kind)
	got, ok := tab.Lookup(x0)
	require.True(t, ok)
	require.Equal(t, d, got)
	require.True(t, tab.Remove(x0))
	require.False(t, tab.Remove(x0))
	require.NoError(t, tab.Add(d))
	require.ErrorIs(t, tab.Close(), errClosing)
	require.Empty(t, tab.Devices())
	require.Same(t, device.DefaultTable(), device.DefaultTable())
}

func TestCapsJSON(t *testing.T) {
	raw, err := json.Marshal(device.ProviderCaps{Device: tensor.Device{Kind: tensor.CUDA, Index: 1}, State: device.Failed, Err: errors.New("no driver"), Features: 255})
	require.NoError(t, err)
	require.JSONEq(t, `{"device":"cuda:1","state":"failed","error":"no driver","features":"0xff","memory":{"shared_physical":false,
		"device_reads_host":false,"host_reads_device_alloc":false,"host_visible_alloc":false,"coherent_without_flush":false}}`, string(raw))
}

// The fake keeps its promises: copies, ranges, alignment, what the host sees.
func TestFakeDevice(t *testing.T) {
	for _, unified := range []bool{false, true} {
		d := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU}, Unified: unified, ReserveLimit: 100})
		b, err := d.Alloc(100)
		require.NoError(t, err)
		require.Equal(t, unified, b.Host() != nil)
		require.Zero(t, uintptr(b.Host())%64)
		x, err := b.Tensor(4, tensor.F32, 3)
		require.NoError(t, err)
		require.Equal(t, b.DevAddr()+4, x.DevAddr)
		_, err = b.Tensor(92, tensor.F32, 3)
		require.ErrorIs(t, err, device.ErrRange)
		_, err = d.Alloc(-1)
		require.ErrorIs(t, err, device.ErrRange)
		q, err := d.NewQueue()
		require.NoError(t, err)
		src := tensor.Must(tensor.FromSlice([]float32{1, 2, 3}, tensor.F32))
		dst := tensor.Must(tensor.FromSlice(make([]float32, 3), tensor.F32))
		require.NoError(t, q.Copy(&x, &src))
		require.NoError(t, q.Copy(&dst, &x))
		require.Equal(t, []float32{1, 2, 3}, tensor.Slice[float32](&dst))
		require.ErrorIs(t, q.Copy(&src, &tensor.Tensor{}), device.ErrRange)
		w, err := q.Reserve(64, 256)
		require.NoError(t, err)
		require.Zero(t, uintptr(w.Host)%256)
		_, err = q.Reserve(101, 8)
		require.ErrorIs(t, err, device.ErrOutOfMemory)
		require.NoError(t, b.Close())
		require.ErrorIs(t, q.Copy(&x, &src), device.ErrRange)
	}
}
