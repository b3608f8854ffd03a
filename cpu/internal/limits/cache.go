package limits

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Cache returns the bytes of the largest cache of the first processor, 0 if the system does not say.
func Cache() int64 { return cache(root()) }

func cache(root fs.FS) (largest int64) {
	const dir = "sys/devices/system/cpu/cpu0/cache"
	entries, _ := fs.ReadDir(root, dir)
	for _, e := range entries {
		text := readLine(root, path.Join(dir, e.Name(), "size"))
		unit := int64(1)
		for i, suffix := range []string{"K", "M", "G"} {
			if s, ok := strings.CutSuffix(text, suffix); ok {
				text, unit = s, 1<<(10*(i+1))
			}
		}
		if n, err := strconv.ParseInt(text, 10, 32); err == nil && n > 0 {
			largest = max(largest, n*unit)
		}
	}
	return largest
}
