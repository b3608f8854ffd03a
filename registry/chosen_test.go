package registry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/opmux/opmux/tensor"
	"github.com/stretchr/testify/require"
)

// A request's answer is logged once, with what it was for, the score and what decided; a kept answer is silent, and the
// latest events are not filled with answers.
func TestChosenIsLogged(t *testing.T) {
	var log bytes.Buffer
	r, op := probe(t, Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	add(t, r, op, tensor.CPU, OpProvider{Name: "a", Priority: 3})
	native(t, r, op, tensor.CPU)
	records := func() (out []map[string]any) {
		for d := json.NewDecoder(&log); d.More(); {
			var m map[string]any
			require.NoError(t, d.Decode(&m))
			if m["msg"] == "opmux: chosen" {
				out = append(out, m)
			}
		}
		return out
	}
	s, err := r.Select(Request{Operator: "probe"})
	require.NoError(t, err)
	require.Equal(t, "a_probe", s.Kernel())
	got := records()
	require.Len(t, got, 1)
	for k, want := range map[string]any{"level": "INFO", "op": "probe", "device": "cpu:0", "kernel": "a_probe", "provider": "a", "priority": 3.0, "source": "heuristic"} {
		require.Equal(t, want, got[0][k], k)
	}
	require.Contains(t, got[0]["score"], "priority 3")
	_, err = r.Select(Request{Operator: "probe"})
	require.NoError(t, err)
	require.Empty(t, records(), "a kept answer")
	_, err = r.Select(Request{Operator: "probe", Override: NativeProviderName})
	require.NoError(t, err)
	got = records()
	require.Len(t, got, 1)
	require.Equal(t, "override", got[0]["source"])
	require.Equal(t, "call wants "+NativeProviderName, got[0]["detail"])
	for _, e := range r.Events() {
		require.NotEqual(t, EventChosen, e.Kind)
	}
}

// A fallback is a warning, except to a kernel that is faster for calls of this size.
func TestFallbackLevel(t *testing.T) {
	require.Equal(t, slog.LevelWarn, levelOf(Event{Kind: EventFallback, Reason: ReasonShape}))
	require.Equal(t, slog.LevelInfo, levelOf(Event{Kind: EventFallback, Reason: ReasonThreshold}))
}
