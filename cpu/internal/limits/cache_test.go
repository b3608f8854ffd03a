package limits

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCache(t *testing.T) {
	const dir = "sys/devices/system/cpu/cpu0/cache/"
	require.Zero(t, cache(files()))
	require.EqualValues(t, 491520<<10, cache(files(dir+"index0/size", "48K", dir+"index2/size", "2048K\n", dir+"index3/size", "491520K", dir+"uevent", "9G")))
	require.EqualValues(t, 1<<30, cache(files(dir+"index3/size", "1G")))
	require.EqualValues(t, 300<<20, cache(files(dir+"index3/size", "300M")))
	require.EqualValues(t, 512, cache(files(dir+"index0/size", "512")))
	require.Zero(t, cache(files(dir+"index0/size", "-1K", dir+"index1/size", "many", dir+"index2/size", "99999999999999999999K")))
}
