package device_test

import (
	"errors"
	"testing"

	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/device/devicetest"
	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// mute hides that the fake reports its health.
type mute struct{ device.Device }

// A lost device stays lost, says since when and why, and every later call says the same.
func TestDeviceLoss(t *testing.T) {
	d := devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU, Index: 1}})
	q, err := d.NewQueue()
	require.NoError(t, err)
	var tab device.Table
	require.NoError(t, tab.Add(d))
	require.NoError(t, tab.Add(mute{devicetest.Open(devicetest.Options{ID: tensor.Device{Kind: tensor.XPU, Index: 2}})}))
	states := func() (out []string) {
		for _, c := range tab.Health() {
			out = append(out, c.Device.String()+" "+c.State())
		}
		return out
	}
	require.Equal(t, []string{"xpu:1 ok", "xpu:2 unknown"}, states())

	cause := errors.New("fell off the bus")
	first := d.Lose(cause)
	require.ErrorIs(t, first, device.ErrLost)
	require.ErrorIs(t, first, cause)
	var lost *device.LostError
	require.ErrorAs(t, first, &lost)
	require.Equal(t, "xpu:1", lost.Device.String())
	require.False(t, lost.At.IsZero())
	require.Equal(t, first, d.Lose(errors.New("again")), "the first loss is kept")
	require.Equal(t, first, tab.Health()[0].Err)
	require.Equal(t, []string{"xpu:1 lost", "xpu:2 unknown"}, states())

	_, err = d.Alloc(1)
	require.Equal(t, first, err)
	_, err = d.NewQueue()
	require.Equal(t, first, err)
	require.Equal(t, first, q.Sync(t.Context()))
	require.Equal(t, first, q.Copy(&tensor.Tensor{}, &tensor.Tensor{}))
	_, err = q.Record()
	require.Equal(t, first, err)
	_, err = q.Reserve(1, 1)
	require.Equal(t, first, err)
	require.NoError(t, d.Close())

	require.Equal(t, "failing", device.Condition{Known: true, Err: cause}.State())
}
