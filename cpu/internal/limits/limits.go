// Package limits finds out how much of the machine this process may use: processors (affinity, control-group quota) and
// memory (what is there, control-group limit); and what the processor is called and how large its caches are. Everything is
// read anew at each call; nothing is cached.
package limits

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// Threads returns max(1, min(affinity, whole processors of the control-group quota, option)), where an option of 0 or
// less sets no limit, and the facts behind it, one sentence each.
func Threads(option int) (int, []string) { return threads(root(), runtime.NumCPU(), option) }

func threads(root fs.FS, affinity, option int) (int, []string) {
	n := affinity
	why := []string{fmt.Sprintf("affinity: the process may run on %d processors", affinity)}
	if quota, file := cpuQuota(root); file == "" {
		why = append(why, "quota: no control group limits processor time")
	} else {
		n = min(n, int(quota))
		why = append(why, fmt.Sprintf("quota: %.4g processors, by %s", quota, file))
	}
	if option > 0 {
		n = min(n, option)
		why = append(why, fmt.Sprintf("option: %d threads asked for", option))
	} else {
		why = append(why, "option: no number of threads asked for")
	}
	n = max(n, 1)
	return n, append(why, fmt.Sprintf("threads: %d", n))
}

// ProcessorName returns the name that the system gives the first processor, "" if it gives none.
func ProcessorName() string { return processorName(root()) }

func processorName(root fs.FS) string {
	text, _ := fs.ReadFile(root, "proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// Memory returns the bytes of memory that the process may use in all and those that are free now; 0 means unknown.
func Memory() (total, available int64) { return memory(root()) }

func memory(root fs.FS) (total, available int64) {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 50)
		switch {
		case err != nil:
		case name == "MemTotal":
			total = kb << 10
		case name == "MemAvailable":
			available = kb << 10
		}
	}
	lower := func(used string) func(dir, text string) {
		return func(dir, text string) {
			most, err := strconv.ParseInt(text, 10, 64)
			if err != nil || total == 0 || most >= total { // "max", or the huge number that means it
				return
			}
			total = most
			if now, err := strconv.ParseInt(readLine(root, path.Join(dir, used)), 10, 64); err == nil {
				available = min(available, max(most-now, 0))
			}
		}
	}
	walk(root, "memory", "memory.limit_in_bytes", lower("memory.usage_in_bytes"))
	walk(root, "", "memory.max", lower("memory.current"))
	return total, available
}

// cpuQuota returns the smallest quota of the process's control groups in processors, and the file that sets it ("" if
// none does).
func cpuQuota(root fs.FS) (quota float64, file string) {
	quota = math.Inf(1)
	lower := func(q, period string, source string) {
		a, err1 := strconv.ParseFloat(q, 64)
		b, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && a > 0 && b > 0 && a/b < quota {
			quota, file = a/b, "/"+source
		}
	}
	walk(root, "cpu", "cpu.cfs_quota_us", func(dir, q string) {
		lower(q, readLine(root, path.Join(dir, "cpu.cfs_period_us")), path.Join(dir, "cpu.cfs_quota_us"))
	})
	walk(root, "", "cpu.max", func(dir, text string) {
		q, period, _ := strings.Cut(text, " ")
		lower(q, period, path.Join(dir, "cpu.max"))
	})
	return quota, file
}

// walk calls found with the content of the named file in the process's control group and in every group above it.
// controller is a version 1 controller, or "" for the version 2 hierarchy.
func walk(root fs.FS, controller, name string, found func(dir, text string)) {
	mount, base := mountOf(root, controller)
	if mount == "" {
		return
	}
	group := groupOf(root, controller)
	if base != "/" { // a container sees only a part of the hierarchy
		group = strings.TrimPrefix(group, base)
	}
	for dir := path.Join(mount, group); ; dir = path.Dir(dir) {
		if text := readLine(root, path.Join(dir, name)); text != "" {
			found(dir, text)
		}
		if dir == mount || len(dir) <= len(mount) {
			return
		}
	}
}

// mountOf returns where the hierarchy is mounted and which group stands at its top, from lines such as
// "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu".
func mountOf(root fs.FS, controller string) (mount, base string) {
	text, _ := fs.ReadFile(root, "proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		left, right, _ := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		v2 := controller == "" && r[0] == "cgroup2"
		v1 := controller != "" && r[0] == "cgroup" && listed(r[2], controller)
		if v1 || v2 {
			return strings.TrimPrefix(l[4], "/"), l[3]
		}
	}
	return "", ""
}

// groupOf returns the process's group, from lines such as "4:cpu,cpuacct:/jobs/7" or, for version 2, "0::/jobs/7".
func groupOf(root fs.FS, controller string) string {
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (controller == "" && f[1] == "" || controller != "" && listed(f[1], controller)) {
			return path.Join("/", f[2])
		}
	}
	return "/"
}

func listed(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func readLine(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
