package opmux_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opmux/opmux/cpu"
	"github.com/opmux/opmux/device"
	"github.com/opmux/opmux/registry"
	"github.com/stretchr/testify/require"
)

// TestW15DocumentedQuarantine puts the page's list in force: its entry holds on the machine that it describes and on no
// other.
func TestW15DocumentedQuarantine(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "quarantine.json"), []byte(blocks(t, "json")[1]), 0o600))
	c, err := registry.LoadConfig(strings.NewReader(`{"version": 1, "quarantine": "quarantine.json"}`), filepath.Join(dir, "opmux.json"))
	require.NoError(t, err)
	r := registry.New(registry.Options{})
	require.NoError(t, cpu.Register(r))
	require.NoError(t, r.SetConfig(c))
	machine, err := device.ReadPlatform(filepath.Join("docs", "platforms", "cpu-avx512.json"))
	require.NoError(t, err)
	for name, quarantined := range map[string]bool{"Some Xeon 8481C CPU": true, "Some other CPU": false} {
		p := *machine
		p.Name = name
		for _, k := range r.Decide(registry.Request{Operator: "rms_norm", Platform: &p}).Choices {
			held := k.Verdict == "rejected" && k.Why[0].Kind == registry.WhyQuarantine
			require.Equal(t, quarantined && k.Kernel == "portable_rms_norm", held, "%s on %s", k.Kernel, name)
			if held {
				require.Contains(t, k.Why[0].String(), "what was seen (who saw it)")
			}
		}
	}
}
