package registry

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatus(t *testing.T) {
	require.Equal(t, "ok", Status(0).String())
	require.Equal(t, "declined(shape)", Decline(ReasonShape).String())
	require.Equal(t, "declined(reason(200))", Decline(200).String())
	require.Equal(t, "grow(4096)", NeedWorkspace(4096).String())
	require.Equal(t, "failed(-7)", Failure(-7).String())
	for _, n := range []int64{0, 1, -1, math.MaxInt32, 1<<39 - 1, -1 << 39} {
		s := Failure(n).NothingEnqueued()
		require.Equal(t, Failed, s.Code())
		require.Equal(t, n, s.Payload())
	}
	for r := range NumReasons {
		require.Equal(t, Reason(r), Decline(Reason(r)).Reason())
		require.NotEmpty(t, Reason(r).String())
	}
	require.Equal(t, "inout", InOut.String())
	require.Equal(t, "borrowed", Borrowed.String())
}
