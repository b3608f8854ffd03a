package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opmux/opmux/registry"
	"github.com/stretchr/testify/require"
)

// env and doctor name the configuration, the rules in force and what is wrong with a file that is ignored.
func TestConfigReports(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good.json":  `{"version": 1, "defaults": {"strict": true}, "rules": [{"match": {"op": "rms_norm"}, "objective": "debug"}], "verdicts": "v.json", "tuning_db": "t.json"}`,
		"stale.json": `{"version": 1, "rules": [{"match": {"op": "rms_nrm"}, "use": "x"}]}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	report := func(o registry.Options) (printed string, findings []string) {
		r := registry.New(o)
		var out bytes.Buffer
		printConfig(&out, r.ConfigStatus())
		checkConfig(r, func(check, level, format string, args ...any) {
			if check != "environment" || len(o.Disable) > 0 {
				findings = append(findings, level+" "+check+": "+fmt.Sprintf(format, args...))
			}
		})
		return out.String(), findings
	}
	printed, findings := report(registry.Options{})
	require.Empty(t, printed)
	require.Empty(t, findings)

	good := filepath.Join(dir, "good.json")
	printed, findings = report(registry.Options{Config: good})
	require.Equal(t, fmt.Sprintf("\nconfiguration: %s, active\n  strict\n  line 1: {\"op\":\"rms_norm\"}: objective debug\n  verdicts: %s\n  note: tuning_db: read, but nothing in this version uses it\n", good, filepath.Join(dir, "v.json")), printed)
	require.Equal(t, []string{"ok configuration: " + good + ": 1 rules", "note configuration: tuning_db: read, but nothing in this version uses it"}, findings)

	stale := filepath.Join(dir, "stale.json")
	printed, findings = report(registry.Options{Config: stale})
	require.Contains(t, printed, "stale.json, ignored\n  registry: ")
	require.Contains(t, printed, `"rms_nrm": unknown name; nearest: rms_norm`)
	require.Len(t, findings, 1)
	require.Contains(t, findings[0], "bad configuration: "+stale+" is ignored: ")

	_, findings = report(registry.Options{Disable: []string{"nobody"}})
	require.Contains(t, findings, `note environment: disable: "nobody": unknown name`)
}
