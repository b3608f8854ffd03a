package debug_test

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/opmux/opmux/debug"
)

// chromium finds the browser. OPMUX_CHROMIUM names it, or is "required".
func chromium(t *testing.T) string {
	want := os.Getenv("OPMUX_CHROMIUM")
	if want != "" && want != "required" {
		return want
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	if want == "required" {
		t.Fatal("OPMUX_CHROMIUM is set to required, and no chromium is installed")
	}
	t.Skip("no chromium is installed; OPMUX_CHROMIUM=required makes this an error")
	return ""
}

// browse runs chromium on a page and returns what it printed.
func browse(t *testing.T, browser, url string, args ...string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, append([]string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--window-size=1280,2000"}, append(args, url)...)...)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	return out.String()
}

// A real browser shows the page while a model generates: the kernels with their counters, one provoked fallback with its
// reason near the top, and hostile texts as texts. The picture is left among the test's artifacts (go test -artifacts).
func TestPageInChromium(t *testing.T) {
	if testing.Short() {
		t.Skip("a browser takes seconds to start")
	}
	browser := chromium(t)
	l := newLoad(t)
	l.lost.Lose(errors.New("fell off the bus " + hostile))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			l.generate(t, 16)
		}
	}()
	defer func() { stop(); <-done }()
	srv := httptest.NewServer(debug.Handler(debug.Options{Registry: l.reg, Devices: l.devices, AllowChanges: true}))
	defer srv.Close()
	require.Eventually(t, func() bool {
		s := debug.Collect(debug.Options{Registry: l.reg, Devices: l.devices})
		return len(s.Fallbacks) > 0 && s.Totals.Executed > 100
	}, time.Minute, 10*time.Millisecond)

	url := srv.URL + debug.Path
	picture := filepath.Join(t.ArtifactDir(), "debug-opmux.png")
	browse(t, browser, url, "--screenshot="+picture)
	png, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(png, []byte("\x89PNG")))
	require.Greater(t, len(png), 20_000, "not an empty page")

	dom := browse(t, browser, url, "--dump-dom")
	require.Contains(t, dom, "</html>")
	require.Contains(t, dom, "picky_rms_norm")
	require.Less(t, strings.Index(dom, `id="fallbacks"`), strings.Index(dom, `id="kernels"`), "the fallback stands near the top")
	row := rowWith(t, section(t, dom, "fallbacks"), "picky_rms_norm")
	for _, want := range []string{"rms_norm", "cpu:0", "alignment", "→ "} {
		require.Contains(t, row, want)
	}
	s := debug.Collect(debug.Options{Registry: l.reg, Devices: l.devices})
	busiest := rowWith(t, section(t, dom, "kernels"), s.Kernels[0].Kernel)
	require.Regexp(t, `<span class="mono">[1-9][0-9\x{202f}]*</span>`, busiest, "its executed count")
	require.Contains(t, section(t, dom, "quarantine"), "liar_silu_and_mul")
	require.Contains(t, section(t, dom, "ill"), "fell off the bus")

	require.NotContains(t, dom, "<script")
	require.NotContains(t, dom, "<img")
	require.NotContains(t, dom, "<title>owned")
	for _, id := range []string{"quarantine", "ill", "libraries", "chains"} {
		require.Contains(t, section(t, dom, id), "&lt;script&gt;document.title=", id)
	}
}

// section cuts the part of a document from the element with that id to the next element with an id.
func section(t *testing.T, dom, id string) string {
	_, rest, ok := strings.Cut(dom, ` id="`+id+`"`)
	require.True(t, ok, "no element %s", id)
	part, _, _ := strings.Cut(rest, ` id="`)
	return part
}

// rowWith returns the first table row of a part that holds the text.
func rowWith(t *testing.T, part, text string) string {
	for _, row := range strings.Split(part, "<tr") {
		if strings.Contains(row, text) {
			return row
		}
	}
	t.Fatalf("no row with %s in\n%s", text, part)
	return ""
}
