package limits

import (
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func files(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

const (
	v1Mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
		"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	v2Mounts = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
)

func TestThreads(t *testing.T) {
	v1 := func(quota string) fstest.MapFS {
		return files("proc/self/mountinfo", v1Mounts, "proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job\n",
			"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", quota+"\n", "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
	}
	v2 := func(job, above string) fstest.MapFS {
		return files("proc/self/mountinfo", v2Mounts, "proc/self/cgroup", "0::/pod/job\n",
			"sys/fs/cgroup/pod/job/cpu.max", job+"\n", "sys/fs/cgroup/pod/cpu.max", above+"\n")
	}
	inside := files("proc/self/mountinfo", "31 23 0:28 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
		"proc/self/cgroup", "4:cpu:/docker/abc\n",
		"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
	for _, c := range []struct {
		name             string
		root             fstest.MapFS
		affinity, option int
		want             int
		says             string
	}{
		{"nothing known", files(), 8, 0, 8, "quota: no control group limits processor time"},
		{"option", files(), 8, 3, 3, "option: 3 threads asked for"},
		{"option above", files(), 8, 99, 8, "affinity: the process may run on 8 processors"},
		{"negative option", files(), 2, -4, 2, "option: no number of threads asked for"},
		{"v1", v1("250000"), 8, 0, 2, "quota: 2.5 processors, by /sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us"},
		{"v1 without quota", v1("-1"), 8, 0, 8, "threads: 8"},
		{"v1 below one", v1("30000"), 8, 0, 1, "threads: 1"},
		{"v1 nonsense", v1("lots"), 8, 0, 8, "threads: 8"},
		{"v1 in a container", inside, 8, 0, 2, "quota: 2 processors, by /sys/fs/cgroup/cpu/cpu.cfs_quota_us"},
		{"v2", v2("300000 100000", "max 100000"), 8, 0, 3, "quota: 3 processors, by /sys/fs/cgroup/pod/job/cpu.max"},
		{"v2 parent is tighter", v2("300000 100000", "150000 100000"), 8, 0, 1, "quota: 1.5 processors, by /sys/fs/cgroup/pod/cpu.max"},
		{"v2 zero period", v2("300000 0", "max"), 8, 2, 2, "threads: 2"},
	} {
		n, why := threads(c.root, c.affinity, c.option)
		require.Equal(t, c.want, n, c.name)
		require.Contains(t, why, c.says, c.name)
	}
	n, why := Threads(1)
	require.Equal(t, 1, n)
	require.NotEmpty(t, why)
}

func TestMemory(t *testing.T) {
	info := "MemTotal:        1000 kB\nMemFree:  1 kB\nMemAvailable:     600 kB\n"
	total, avail := memory(files("proc/meminfo", info))
	require.EqualValues(t, 1000<<10, total)
	require.EqualValues(t, 600<<10, avail)

	total, avail = memory(files("proc/meminfo", info, "proc/self/mountinfo", v2Mounts, "proc/self/cgroup", "0::/job",
		"sys/fs/cgroup/job/memory.max", "409600", "sys/fs/cgroup/job/memory.current", "102400"))
	require.EqualValues(t, 409600, total)
	require.EqualValues(t, 307200, avail)

	total, avail = memory(files("proc/meminfo", info, "proc/self/mountinfo", v1Mounts, "proc/self/cgroup", "3:memory:/job\n",
		"sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712"))
	require.EqualValues(t, 1000<<10, total, "no limit is a number above all memory")
	require.EqualValues(t, 600<<10, avail)

	total, avail = memory(files())
	require.Zero(t, total)
	require.Zero(t, avail)
	if runtime.GOOS == "linux" {
		total, avail = Memory()
		require.Positive(t, total)
		require.Positive(t, avail)
	}
}

func TestProcessorName(t *testing.T) {
	require.Equal(t, "Some CPU @ 2 GHz", processorName(files("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\nmodel name\t: Another\n")))
	require.Empty(t, processorName(files("proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd0c\n")))
	require.Empty(t, processorName(files()))
}
